# PMT small enough to train on two CPU cores, and a backbone that is trained too.
_base_ = './pmt.py'

model = dict(
    data_preprocessor=dict(pad_size_divisor=32),
    backbone=dict(arch='nano_12_p16', frozen_stages=-1),
    panoptic_head=dict(in_channels=128, num_queries=20, num_blocks=3, num_heads=4),
    train_cfg=dict(num_points=1024),
    test_cfg=dict(max_per_image=20))
