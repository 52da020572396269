//! Reasons why fields of a DeepSpeed configuration have no counterpart.

use serde_json::{Map, Value};

use crate::import::draft::Draft;

/// Reason for a field without documentation.
const UNKNOWN: &str = "not a field that the import knows";

/// Reason for a field that tunes the other engine.
pub(super) const IMPLEMENTATION: &str = "a detail of DeepSpeed's implementation";

/// Reason for everything that moves tensors from a device to its host.
pub(super) const IN_HOST_MEMORY: &str =
    "workers compute on the CPU, so the tensors are in host memory";

/// Section, reason and fields; the root has no name.
#[rustfmt::skip]
const REASONS: &[(&str, &str, &[&str])] = &[
    ("", "every step is an event of the run folder", &["steps_per_print"]),
    ("", "times, bytes and memory are part of the events; `lockstep doctor` explains them",
        &["wall_clock_breakdown", "memory_breakdown", "flops_profiler", "comms_logger"]),
    ("", "events are JSON Lines in the run folder",
        &["tensorboard", "wandb", "comet", "csv_monitor", "monitor_config"]),
    ("", "gradients are summed in f32, then divided once",
        &["prescale_gradients", "gradient_predivide_factor"]),
    ("", "gradients are those of the mean; see train.reduction", &["gradient_allreduce_op"]),
    ("", "set sync.sparse_rows with sync.mode = \"parameter-server\"", &["sparse_gradients"]),
    ("", "ZeRO works with every optimizer here",
        &["zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"]),
    ("", "set precision.compute", &["amp"]),
    ("", "set run.workers = {min = 2, max = 8}", &["elasticity"]),
    ("", "`lockstep plan` and `lockstep sweep` search settings", &["autotuning"]),
    ("", "the engine chooses how it reads and writes", &["aio"]),
    ("", "every checkpoint can be restored under another layout; set checkpoint.every",
        &["checkpoint", "nebula", "load_universal_checkpoint", "checkpoint_tag_validation"]),
    ("", "attention is dense", &["sparse_attention"]),
    ("", "set train.seqlen_warmup_steps for a curriculum by sequence length",
        &["curriculum_learning", "data_efficiency"]),
    ("", "depth is constant over a run", &["progressive_layer_drop"]),
    ("", "weights are not compressed in training", &["compression_training", "quantize_training"]),
    ("", "mixture-of-experts models can be planned, not run", &["expert_parallel", "moe"]),
    ("", "context parallelism can be planned, not run",
        &["sequence_parallel_size", "sequence_parallel", "autosp"]),
    ("", "reinforcement learning is not supported", &["hybrid_engine"]),
    ("", IMPLEMENTATION, &["compile", "deepcompile", "graph_harvesting", "disable_allgather",
        "managed_gradient_accumulation", "dump_state", "eigenvalue", "log_level",
        "use_data_before_expert_parallelism", "timers"]),
    ("", "set model.vocab", &["vocabulary_size"]),

    ("fp16", "every overflow halves the loss scale at once",
        &["hysteresis", "consecutive_hysteresis"]),
    ("fp16", "the smallest loss scale is 1", &["min_loss_scale"]),
    ("fp16", "inputs are tokens; there is nothing to cast", &["auto_cast"]),
    ("fp16", "master weights and gradients are f32", &["fp16_master_weights_and_grads"]),

    ("bf16", "master weights and gradients are f32", &["bf16_master_weights_and_grads"]),
    ("bf16", "the optimizer state is f32", &["bf16_optimizer_states"]),
    ("bf16", "a step with gradients that are not finite is skipped or stops the run; set \
        train.max_skipped", &["check_grad_overflow"]),
    ("bf16", "gradients are added to f32 buffers in every pass", &["immediate_grad_update"]),

    ("zero_optimization", "the ZeRO stage decides which collective is used",
        &["allgather_partitions", "use_multi_rank_bucket_allreduce", "reduce_scatter",
          "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential"]),
    ("zero_optimization", "gathers have the buckets of the gradients; set parallel.bucket_bytes",
        &["allgather_bucket_size", "stage3_prefetch_bucket_size"]),
    ("zero_optimization", "gradients are contiguous in every bucket", &["contiguous_gradients"]),
    ("zero_optimization", "the optimizer updates whole buckets", &["sub_group_size"]),
    ("zero_optimization", "weights are released after each use",
        &["stage3_max_live_parameters", "stage3_max_reuse_distance"]),
    ("zero_optimization", "all weights are sharded",
        &["stage3_param_persistence_threshold", "stage3_model_persistence_threshold"]),
    ("zero_optimization", "saved weights are always complete",
        &["stage3_gather_16bit_weights_on_model_save",
          "stage3_gather_fp16_weights_on_model_save"]),
    ("zero_optimization", "every checkpoint can be restored under another layout",
        &["elastic_checkpoint", "load_from_fp32_weights", "pipeline_loading_checkpoint"]),
    ("zero_optimization", "every parameter is used", &["ignore_unused_parameters"]),
    ("zero_optimization", "gradients are not copied to another memory",
        &["round_robin_gradients"]),
    ("zero_optimization", "weights are sharded over all replicas",
        &["zero_hpz_partition_size", "mics_shard_size", "mics_hierarchical_params_gather"]),
    ("zero_optimization", "weights are sent uncompressed",
        &["zero_quantized_weights", "zero_quantized_nontrainable_weights"]),
    ("zero_optimization", "set compress.method = \"int8\" to quantize gradients",
        &["zero_quantized_gradients", "zeropp_loco_param"]),
    ("zero_optimization", IN_HOST_MEMORY, &["cpu_offload_use_pin_memory"]),
    ("zero_optimization", IMPLEMENTATION, &["zenflow", "legacy_stage1", "leaf_module",
        "override_module_apply", "memory_efficient_linear", "log_trace_cache_warnings",
        "enable_sanity_checks", "save_muon_momentum_buffer_in_memory",
        "stage3_module_granularity_threshold"]),

    ("offload", "only with device = \"nvme\" of offload_optimizer", &["nvme_path"]),
    ("offload", IN_HOST_MEMORY, &["pin_memory"]),
    ("offload", "the engine chooses the buffers of an offload", &["buffer_count", "buffer_size",
        "max_in_cpu", "pipeline", "pipeline_read", "pipeline_write", "fast_init"]),
    ("offload", "the whole optimizer state is offloaded", &["ratio"]),

    ("activation_checkpointing",
        "set parallel.sequence = true with parallel.tensor to shard activations",
        &["partition_activations"]),
    ("activation_checkpointing", IN_HOST_MEMORY, &["cpu_checkpointing"]),
    ("activation_checkpointing",
        "every layer is a checkpoint; set parallel.recompute = \"every-2\" for fewer",
        &["number_checkpoints"]),
    ("activation_checkpointing", "activations are allocated once, before step one",
        &["contiguous_memory_optimization"]),
    ("activation_checkpointing", IMPLEMENTATION, &["synchronize_checkpoint_boundary", "profile"]),

    ("tensor_parallel", "all-reduces of a layer are not overlapped", &["tp_overlap_comm"]),
    ("tensor_parallel", "the engine knows how to shard its models",
        &["preset_model", "partition_config", "use_default_specs", "layer_specs"]),

    ("optimizer", IMPLEMENTATION, &["legacy_fusion"]),
    ("optimizer.params", "there is one implementation of each optimizer",
        &["torch_adam", "fused", "foreach"]),
    ("optimizer.params", "biases are always corrected", &["bias_correction"]),
    ("optimizer.params", "no AMSGrad here", &["amsgrad"]),
    ("optimizer.params", "workers choose their transport; set run.transport",
        &["cuda_aware", "comm_backend_name"]),
    ("optimizer.params", "the trust ratio of LAMB is not bounded", &["max_coeff", "min_coeff"]),

    ("scheduler.params", "the warm-up starts at zero", &["warmup_min_lr", "warmup_min_ratio"]),
    ("scheduler.params", "the warm-up is linear", &["warmup_type"]),
];

/// Why a field of a section has no counterpart.
pub(super) fn reason(section: &str, field: &str) -> &'static str {
    let mut reasons = REASONS.iter();
    let found = reasons.find(|(known, _, fields)| *known == section && fields.contains(&field));
    found.map_or(UNKNOWN, |(_, reason, _)| reason)
}

/// Lists the fields of a section at `path`, but those that are `known`.
pub(super) fn list_others(
    draft: &mut Draft,
    section: &str,
    path: &str,
    fields: &Map<String, Value>,
    known: &[&str],
) {
    for (field, value) in fields.iter().filter(|(field, _)| !known.contains(&field.as_str())) {
        draft.list(&format!("{path}.{field}"), value, reason(section, field));
    }
}
