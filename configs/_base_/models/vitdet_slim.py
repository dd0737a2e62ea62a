# ViTDet small enough to train on two CPU cores, on XCiT-N12/16: plain blocks learn more slowly.
_base_ = './vitdet.py'

model = dict(
    backbone=dict(
        _delete_=True, type='XCiT', arch='nano_12_p16', out_indices=(-1, ), drop_path_rate=0.0),
    neck=dict(in_channels=128, out_channels=64),
    rpn_head=dict(in_channels=64, feat_channels=64, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=dict(in_channels=64, conv_out_channels=64, fc_out_channels=256),
        mask_roi_extractor=dict(out_channels=64),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=500, max_per_img=100),
        rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=100)))
