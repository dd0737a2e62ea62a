_base_ = '../_base_/vitdet_slim_shapes.py'

# width and depth of XCiT-N12; windows of half an image
model = dict(
    backbone=dict(
        type='PlainViT',
        img_size=128,
        window_size=4,
        arch=dict(_delete_=True, embed_dim=128, depth=12, num_heads=4)))
