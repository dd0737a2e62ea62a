_base_ = '../_base_/mask_rcnn_slim_shapes.py'

# width and depth of XCiT-N12
model = dict(
    backbone=dict(
        type='PlainViT',
        img_size=128,
        arch=dict(_delete_=True, embed_dim=128, depth=12, num_heads=4)))
