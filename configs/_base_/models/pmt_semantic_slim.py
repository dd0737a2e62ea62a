# PMT for semantic segmentation small enough to train on two CPU cores, see pmt_slim.py.
_base_ = './pmt_semantic.py'

model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(arch='nano_12_p16', frozen_stages=-1),
    decode_head=dict(
        in_channels=128, num_queries=20, num_blocks=3, num_heads=4,
        train_cfg=dict(num_points=1024)),
    test_cfg=dict(mode='whole', crop_size=None, stride=None))
