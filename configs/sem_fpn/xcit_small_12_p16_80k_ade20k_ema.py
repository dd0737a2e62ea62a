_base_ = './xcit_small_12_p16_80k_ade20k.py'

# evaluated and saved are weights averaged over some 10,000 iterations
custom_hooks = [
    dict(type='EMAHook', ema_type='ExponentialMovingAverage', momentum=1e-4, update_buffers=True)
]
