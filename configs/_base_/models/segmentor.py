# A segmenter on XCiT-S12/16 without its decode head.
default_scope = 'mmseg'
visualizer = dict(type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512)),
    backbone=dict(type='XCiT', arch='small_12_p16', drop_path_rate=0.05),
    neck=dict(type='ColumnarPyramid', in_channels=384, stride=16),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
