# EoMT small enough to train on two CPU cores.
_base_ = './eomt.py'

model = dict(
    data_preprocessor=dict(pad_size_divisor=32),
    backbone=dict(img_size=128, arch=dict(_delete_=True, embed_dim=128, depth=12, num_heads=4)),
    panoptic_head=dict(in_channels=128, num_queries=20),
    train_cfg=dict(num_points=1024),
    test_cfg=dict(max_per_image=20))
