_base_ = './xcit_small_12_p16_80k_ade20k.py'

# tested in overlapping windows, for images too large for one pass
model = dict(test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)))
