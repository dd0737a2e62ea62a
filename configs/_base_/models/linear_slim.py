# A linear head on XCiT-N12/16, which is trained too: random features are worth little.
_base_ = './linear.py'

model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(arch='nano_12_p16', frozen_stages=-1),
    decode_head=dict(in_channels=128),
    test_cfg=dict(crop_size=(128, 128), stride=(85, 85)))
