"""The public names: adding or removing one is a decision, not an accident."""

import inspect

import polaformer

NAMES = {
    "BackendStatus",
    "LoadReport",
    "PolaAttention",
    "PolaAttentionStream",
    "PolaLinearAttention",
    "list_backends",
    "load_checkpoint",
    "load_weights",
    "pola_attention",
    "pola_attention_varlen",
    "save_weights",
    "WeightsInfo",
}


def test_public_names():
    public = {n for n, v in vars(polaformer).items() if not n.startswith("_") and not inspect.ismodule(v)}
    assert public == NAMES


def test_every_public_name_is_documented():
    for name in NAMES:
        assert inspect.getdoc(getattr(polaformer, name))


def test_operator_signature():
    assert str(inspect.signature(polaformer.pola_attention)) == (
        "(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, power: torch.Tensor, *, "
        "key_padding_mask: Optional[torch.Tensor] = None, eps: float = 1e-06, backend: str = 'auto', "
        "group: Optional[ForwardRef('ProcessGroup')] = None) -> torch.Tensor"
    )


def test_published_layer_signature():
    parameters = inspect.signature(polaformer.PolaLinearAttention).parameters.values()
    published = [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert published == [
        ("dim", inspect.Parameter.empty), ("num_patches", inspect.Parameter.empty), ("num_heads", 8), ("qkv_bias", False),
        ("qk_scale", None), ("attn_drop", 0.0), ("proj_drop", 0.0), ("sr_ratio", 1), ("kernel_size", 5), ("alpha", 4),
    ]  # fmt: skip
