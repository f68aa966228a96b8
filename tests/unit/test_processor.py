import pytest

from ppojob_trainer import processor


@pytest.mark.parametrize(
    ("flags", "limits", "native"),
    [
        ("avx2 avx512f avx512_bf16", {}, True),
        ("avx2 avx512f amx_bf16", {}, True),
        ("fp asimd bf16", {}, True),
        ("avx2 avx512f", {}, False),
        ("avx2", {}, False),
        ("avx2 avx512_bf16", {"ATEN_CPU_CAPABILITY": "avx2"}, False),
        ("avx2 avx512_bf16", {"ATEN_CPU_CAPABILITY": "avx512"}, True),
        ("avx2 avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "avx512_core"}, False),
        ("avx2 avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, True),
    ],
)
def test_bfloat16_is_native_where_processor_and_libraries_multiply_it(
    flags: str, limits: dict[str, str], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "_flags", lambda: frozenset(flags.split()))
    assert processor.has_native_bfloat16(limits) is native
