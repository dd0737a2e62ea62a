_base_ = '../_base_/sem_fpn_slim_shapes.py'

# width and depth of XCiT-N12
model = dict(
    backbone=dict(
        type='CaiT',
        img_size=128,
        arch=dict(_delete_=True, embed_dim=128, depth=12, num_heads=4, layer_scale_init_value=0.1)))
