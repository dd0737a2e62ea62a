# Segmenter small enough to train on two CPU cores.
_base_ = './segmenter.py'

model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(arch='nano_12_p16', drop_path_rate=0.0),
    decode_head=dict(in_channels=128, channels=128, embed_dims=128, num_heads=2),
    test_cfg=dict(crop_size=(128, 128), stride=(120, 120)))
