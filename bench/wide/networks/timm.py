"""A model of each of timm's modules (1.0.31), which nothing here was written for: the one whose parameters are nearest to 25 million, a
ResNet-50's. They are timed only where the domain or a network of it is asked for."""

import importlib
from functools import partial

import torch

from bench.wide.registry import NETWORKS, Network, Parts

DOMAIN = "timm"
MODELS = """
beit_base_patch16_224 botnet50ts_256 gcresnet50t cait_xs24_384 coat_small convit_small convmixer_1024_20_ks9_p14 convnext_tiny cpubone_b2_bfrobust
crossvit_small_240 csatv2_21m cspdarknet53 cspnext_l davit_tiny deepseek_vit_412m deit_small_distilled_patch16_224 densenet161 dla102x dpn92
edgenext_base efficientformer_l3 efficientformerv2_l efficientnet_cc_b0_8e efficientvim_m4_dist efficientvit_b2 efficientvit_m5
vit_pe_core_small_patch16_384 fasternet_s fastvit_sa24 focalnet_tiny_srf gcvit_tiny gemma4_vit_167m ghostnetv3_160 hardcorenas_f hgnet_small
hiera_tiny_224 sam2_hiera_tiny hrnet_w18 iformer_l2_distilled inception_next_tiny inception_resnet_v2 inception_v3 inception_v4 lcnetv2_large
levit_256d lowformer_e2 mambaout_tiny coatnet_0_224 caformer_s18 gmixer_24_224 mobilenetv4_hybrid_large_075 mobilenetv5_base mobilevitv2_200
mvitv2_tiny naflexvit_base_patch16_parfac_gap nasnetalarge nest_tiny nextvit_small nf_resnet50 pit_s_distilled_224 pnasnet5large pvt_v2_b2
qwen3_vit_88m rdnet_tiny regnetx_064 repghostnet_200 repvit_m2_3 res2net50_14w_8s resnest50d_1s4x24d resnext50_32x4d resnetv2_50 rexnet_300 selecsls42
legacy_seresnext50_32x4d sequencer2d_s shvit_s4 skresnet50 starnet_s4 swiftformer_l3 swin_tiny_patch4_window7_224 swinv2_tiny_window16_256
swinv2_cr_tiny_224 tiny_vit_21m_512 tnt_s_patch16_224 tresnet_m twins_pcpvt_small vgg11 visformer_small vit_small_patch32_384 vit_small_r26_s32_224
vit_relpos_small_patch16_224 samvit_base_patch16_224 vitamin_small_224 volo_d1_224 ese_vovnet39b_evos legacy_xception xception41p xcit_small_12_p8_224
"""


def make(name: str, batch: int) -> Parts:
    model = importlib.import_module("timm").create_model(name)
    return model, torch.randn(batch, *model.default_cfg["input_size"])


NETWORKS.update(
    (f"timm_{name}", Network(name, DOMAIN, partial(make, name), images=True, library="timm"))
    for name in MODELS.split()
)
