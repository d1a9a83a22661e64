"""What each room shows to the others. A change here is a change of a contract."""

from __future__ import annotations

import importlib

import pytest

from support.source import ROOMS

FACES = {
    "budget": """
        Ask BadSetting Balance BudgetError BudgetExceeded BudgetSpec Grant Keyring Ledger Limits NeverFits Spent Store
        StoreUnavailable Tenant TenantSpec UnknownKey open_store
    """,
    "engine": """
        EngineBusy EngineConfig EngineDead EngineError EngineProcess LaneConfig ModelError ModelSummary
        PrecisionCheck Progress RequestRejected Respell SamplingParams SequenceFailed Silent ThinkLimit
        check_model choose_precision convert_gguf describe_kernels inspect_model launch messages upcycle
    """,
    "gateway": """
        Settings create_app load_settings
    """,
    "kernels": """
        NUMERIC AttentionPlan BackendReport Choice Experts Format KvFormat Linear NativeDecoder PackedDense
        PackedExperts PackedLayer PackedLinear PackedModel PackedShape PackedWeight Rotation SampleRows
        StepRefused TgStep ThreadPool Unavailable backend_report embedding gated_mlp huge_bytes kernel_levels
        kv_bytes linear_residual lm_head log_probabilities moe norm_linear pack pack_codes pack_experts
        pack_int8 pack_linear paged_attention plan_attention rope_angles rope_kv sample unpack
    """,
    "tiers": """
        Answer BadField BadPrompt Called Catalog ChatRequest ContextTooLong EFFORTS Effort EngineSpec Event Finish
        FinishReason GenerationFailed Message ModelFolder ModelMissing OpenTiers Prompt Rung Sampling Start Text Think
        ThinkingSpec Tier TierError TierHealth TierSpec TierUnavailable TokenLogprob ToolCall ToolSpec UpstreamRefused
        Usage describe_kernels open_tiers run_cascade
    """,
}


@pytest.mark.parametrize("room", ROOMS)
def test_a_face_is_what_it_is_said_to_be(room: str) -> None:
    face = importlib.import_module(f"tiergate.{room}")
    assert sorted(face.__all__) == sorted(FACES[room].split())
    assert len(set(face.__all__)) == len(face.__all__)
    assert [name for name in face.__all__ if not hasattr(face, name)] == []
    assert face.__doc__


def test_every_room_has_one_base_of_its_errors() -> None:
    """Whatever error a face shows is a child of the room's own base, so that one name catches a room."""
    for room, base in (("budget", "BudgetError"), ("engine", "EngineError"), ("tiers", "TierError")):
        face = importlib.import_module(f"tiergate.{room}")
        shown = [value for name in face.__all__ if isinstance(value := getattr(face, name), type)]
        errors = [kind for kind in shown if issubclass(kind, BaseException)]
        assert [kind for kind in errors if not issubclass(kind, getattr(face, base))] == []
