# RTMDet-Ins small enough to train on two CPU cores.
_base_ = './rtmdet_ins.py'

model = dict(
    backbone=dict(arch='nano_12_p16', drop_path_rate=0.0),
    neck=dict(in_channels=128, fpn=dict(out_channels=64, num_csp_blocks=1)),
    bbox_head=dict(in_channels=64, feat_channels=64),
    test_cfg=dict(nms_pre=300))
