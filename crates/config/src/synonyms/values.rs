//! Values of settings in other frameworks, with the value of the same meaning.

/// Values elsewhere of one key.
#[derive(Debug)]
pub(crate) struct ValueSynonym {
    /// The keys to whose values it applies.
    pub(crate) keys: &'static [&'static str],
    /// The values elsewhere, in lower case.
    pub(crate) values: &'static [&'static str],
    /// The value of the same meaning, as written after `--set key=`.
    pub(crate) value: &'static str,
    /// Further settings (`key=value`) that it needs.
    pub(crate) others: &'static [&'static str],
}

const fn of(
    keys: &'static [&'static str],
    value: &'static str,
    values: &'static [&'static str],
) -> ValueSynonym {
    ValueSynonym { keys, values, value, others: &[] }
}

const FORMATS: &[&str] = &["precision.compute", "precision.wire"];
const MODE: &[&str] = &["sync.mode"];
const OPTIMIZER: &[&str] = &["optim.name"];
const SCHEDULE: &[&str] = &["optim.schedule"];
const FAMILY: &[&str] = &["model.family"];
const ZERO: &[&str] = &["parallel.zero"];
const RECOMPUTE: &[&str] = &["parallel.recompute"];
const PIPELINE: &[&str] = &["parallel.schedule"];
const METHOD: &[&str] = &["compress.method"];
const STATE: &[&str] = &["offload.state"];

/// Every value with another name elsewhere. Spellings that differ in case, `-` or `_` alone are
/// not listed.
#[rustfmt::skip]
pub(crate) const VALUE_SYNONYMS: &[ValueSynonym] = &[
    of(FORMATS, "f32", &["fp32", "float32", "float", "32", "32-true", "no", "single",
        "torch.float32", "none", "false"]),
    of(FORMATS, "bf16", &["bfloat16", "bfp16", "bf16-mixed", "bf16-true", "torch.bfloat16",
        "amp", "mixed", "true"]),
    of(FORMATS, "fp16", &["float16", "f16", "half", "16", "16-mixed", "16-true", "torch.float16"]),

    of(&["precision.compute"], "fp8", &["float8", "e4m3", "fp8-mixed", "transformer-engine"]),

    ValueSynonym {
        keys: MODE,
        values: &["diloco", "streaming-diloco", "open-diloco", "async-diloco"],
        value: "local-sgd",
        others: &["sync.outer=nesterov"],
    },
    of(MODE, "all-reduce", &["ddp", "sync", "synchronous", "fsdp", "zero", "bsp", "horovod",
        "data-parallel", "mirrored"]),
    of(MODE, "local-sgd", &["local", "post-local-sgd", "model-averaging", "periodic-averaging"]),
    of(MODE, "parameter-server", &["ps", "async", "asynchronous", "asgd", "ssp", "downpour"]),
    of(MODE, "federated", &["fl", "fedavg", "fedprox", "scaffold", "fedopt"]),
    of(MODE, "gossip", &["d-psgd", "dpsgd", "ad-psgd", "decentralized", "sgp"]),
    ValueSynonym {
        keys: MODE,
        values: &["hogwild!", "lock-free"],
        value: "hogwild",
        others: &["run.workers=1", "optim.name=sgd", "optim.weight_decay=0"],
    },

    of(OPTIMIZER, "adamw", &["adamw_torch", "adamw_hf", "adamw_torch_fused", "adamw_apex_fused",
        "fusedadamw", "adamw_fused"]),
    of(OPTIMIZER, "adam", &["fusedadam", "cpuadam", "deepspeedcpuadam", "torch_adam"]),
    of(OPTIMIZER, "momentum", &["sgdm", "sgd_momentum", "heavy_ball"]),
    of(OPTIMIZER, "nesterov", &["nag", "sgd_nesterov"]),
    of(OPTIMIZER, "lamb", &["fusedlamb", "onebitlamb"]),
    of(OPTIMIZER, "schedule-free-adamw", &["schedule_free_adamw", "adamwschedulefree",
        "adamw_schedulefree", "schedulefree"]),
    of(OPTIMIZER, "adamw-8bit", &["adam8bit", "adamw_bnb_8bit", "paged_adamw_8bit"]),
    of(OPTIMIZER, "lion", &["lion_32bit", "fusedlion", "cpulion", "deepspeedcpulion"]),
    ValueSynonym {
        keys: OPTIMIZER,
        values: &["onebitadam", "1bitadam", "zerooneadam", "01adam"],
        value: "adam",
        others: &["compress.method=one-bit-adam", "optim.clip=0"],
    },

    of(SCHEDULE, "constant", &["constant_with_warmup", "warmuplr", "none", "fixed", "flat"]),
    of(SCHEDULE, "linear", &["warmupdecaylr", "linearlr", "linear_with_warmup"]),
    of(SCHEDULE, "cosine", &["warmupcosinelr", "cosineannealinglr", "cosine_with_restarts",
        "cosine_with_min_lr", "cosine_annealing"]),
    of(SCHEDULE, "step", &["steplr", "multisteplr", "multistep", "piecewise"]),
    of(SCHEDULE, "wsd", &["warmup_stable_decay", "trapezoidal"]),

    of(FAMILY, "gpt2", &["gpt", "nanogpt", "gpt2lmheadmodel"]),
    of(FAMILY, "llama", &["llama2", "llama3", "llama3.1", "mistral", "transformer",
        "llamaforcausallm", "decoder"]),
    of(FAMILY, "gpt_neox", &["gptneox", "neox", "pythia", "gptneoxforcausallm"]),
    of(FAMILY, "bloom", &["bloomz", "bloomforcausallm"]),
    of(FAMILY, "mlp", &["feedforward", "fully-connected"]),

    of(ZERO, "3", &["full_shard", "full_shard auto_wrap", "fsdp", "true", "stage3",
        "zero3", "fsdp2"]),
    of(ZERO, "2", &["shard_grad_op", "stage2", "zero2"]),
    of(ZERO, "1", &["stage1", "zero1", "distributed_optimizer"]),
    of(ZERO, "0", &["no_shard", "false", "none", "ddp", "stage0", "off"]),

    of(RECOMPUTE, "full", &["true", "uniform", "block", "all", "on", "1", "yes"]),
    of(RECOMPUTE, "none", &["false", "off", "0", "no", "never"]),
    of(RECOMPUTE, "selective", &["op", "memory_budget", "partial", "core_attn"]),

    of(PIPELINE, "interleaved", &["interleaved1f1b", "interleaved_1f1b", "looped_bfs", "vpp"]),
    of(PIPELINE, "1f1b", &["one_f_one_b", "schedule1f1b", "pipedream", "pipedream-flush"]),
    of(PIPELINE, "gpipe", &["schedulegpipe", "fill-drain"]),
    of(PIPELINE, "zero-bubble", &["zb", "zb-h1", "zbh1", "interleavedzerobubble", "zbvzerobubble"]),

    of(&["run.transport"], "auto", &["nccl", "gloo", "ucc", "rccl", "hccl", "xla"]),
    of(&["run.transport"], "shm", &["shared-memory", "sharedmem"]),
    of(&["run.isolation"], "threads", &["thread", "false"]),
    of(&["run.isolation"], "processes", &["process", "spawn", "fork", "true"]),
    of(&["run.isa"], "auto", &["cpu", "native"]),
    ValueSynonym {
        keys: &["run.isa"],
        values: &["cuda", "gpu"],
        value: "auto",
        others: &["run.device=cuda"],
    },
    of(&["run.isa"], "avx512", &["amx", "avx-512"]),
    of(&["run.isa"], "portable", &["sse2", "scalar", "generic", "neon"]),

    of(&["run.device"], "cuda", &["gpu", "nvidia"]),
    of(&["run.device"], "cpu", &["host", "none"]),

    of(METHOD, "power-sgd", &["low-rank"]),
    ValueSynonym {
        keys: METHOD,
        values: &["onebitadam", "1bit-adam"],
        value: "one-bit-adam",
        others: &["optim.clip=0"],
    },
    of(METHOD, "sign", &["signsgd", "ef-signsgd", "onebit", "1bit"]),
    of(METHOD, "int8", &["8bit", "quantize", "q8"]),
    of(METHOD, "top-k", &["sparse", "topk-sgd"]),
    of(METHOD, "none", &["false", "off", "no"]),

    of(STATE, "file", &["nvme", "disk", "true", "ssd"]),
    of(STATE, "none", &["cpu", "false", "off", "no", "host", "memory"]),

    ValueSynonym {
        keys: &["data.format"],
        values: &["sharegpt", "alpaca", "openai", "messages", "conversations", "conversational",
            "instruct", "instruction", "sft", "chatml", "chat_template"],
        value: "chat",
        others: &["data.source=chat.jsonl"],
    },
    ValueSynonym {
        keys: &["data.format"],
        values: &["dpo", "preference", "preferences", "pairs"],
        value: "chat",
        others: &["data.source=pairs.jsonl", "finetune.method=dpo"],
    },
    ValueSynonym {
        keys: &["finetune.method"],
        values: &["sft", "instruct", "supervised"],
        value: "full",
        others: &["data.format=chat", "data.source=chat.jsonl"],
    },
    ValueSynonym {
        keys: &["finetune.lora_targets"],
        values: &["all", "all_linear"],
        value: "all-linear",
        others: &["finetune.lora_rank=8"],
    },

    of(&["data.order"], "random", &["shuffle", "shuffled", "true"]),
    of(&["data.order"], "sequential", &["false", "ordered", "in-order"]),
    of(&["data.last_batch"], "drop", &["true", "drop_last"]),
    of(&["data.last_batch"], "wrap", &["false", "repeat"]),
    of(&["checkpoint.compression"], "zstd", &["zstandard", "true"]),
];
