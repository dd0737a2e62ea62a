_base_ = './xcit_small_12_p16_3x_coco.py'

# the learning rate falls towards the stem; matrices alone decay
optim_wrapper = dict(
    constructor='LayerDecayConstructor',
    paramwise_cfg=dict(_delete_=True, layer_decay_rate=0.75, flat_decay_mult=0.))
