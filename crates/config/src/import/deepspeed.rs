//! Import of a DeepSpeed configuration (`ds_config.json`).
//!
//! Fields and defaults are those of DeepSpeed's "Configuration JSON" page. A default of DeepSpeed
//! that differs from ours is written out where the file uses the feature. A value `"auto"`, which
//! the Hugging Face Trainer fills in from its own arguments, is listed with the key to set.
//!
//! - `optimizer`: the optimizer and the learning-rate schedule
//! - `field`: values of JSON fields
//! - `reason`: reasons why fields have no counterpart

mod field;
mod optimizer;
mod reason;

use serde_json::{Map, Value};

use field::{
    ACCUMULATION, DEFAULT, MICRO_BATCH, TRAIN_BATCH, auto_reason, has_auto, is_auto, number_format,
    quotient, type_name, whole,
};
use optimizer::{optimizer, scheduler};
use reason::{IMPLEMENTATION, IN_HOST_MEMORY, list_others, reason};

use super::draft::{Draft, ImportError, Imported};
use crate::topics::limits::MAX_WORKERS;
use crate::topics::{LossScale, Recipe};
use crate::value::quoted;

/// Choices that the file does not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Number of workers; without it, the number that the batch sizes imply, or the default.
    pub workers: Option<usize>,
}

/// Makes a recipe from a DeepSpeed configuration; `name` appears in its first line.
pub fn import(name: &str, text: &str, options: Options) -> Result<Imported, ImportError> {
    let root: Value = serde_json::from_str(text).map_err(|error| {
        let full = error.to_string();
        let reason = full.split(" at line ").next().unwrap_or_default().to_owned();
        ImportError::NotJson { line: error.line().max(1), reason }
    })?;
    let Value::Object(fields) = &root else {
        return Err(ImportError::NotAnObject { found: type_name(&root) });
    };
    let max = MAX_WORKERS;
    if let Some(workers) = options.workers
        && !(1..=max as usize).contains(&workers)
    {
        return Err(ImportError::Workers { workers, max });
    }
    let mut draft = Draft::default();
    let uses_trainer = has_auto(&root);
    for (field, value) in fields {
        let table = value.as_object();
        match (field.as_str(), table) {
            (TRAIN_BATCH | MICRO_BATCH | ACCUMULATION, _) | ("scheduler", Some(_)) => {}
            ("fp16", Some(table)) => fp16(&mut draft, table),
            ("bf16" | "bfloat16", Some(table)) => bf16(&mut draft, field, table),
            ("torch_autocast", Some(table)) => autocast(&mut draft, table),
            ("zero_optimization", Some(table)) => zero(&mut draft, table),
            ("zero_optimization", None) if value.is_boolean() => {
                // The oldest files turn ZeRO-1 on with a boolean.
                draft.set("parallel.zero", u8::from(value == &Value::Bool(true)), field);
            }
            ("optimizer", Some(table)) => optimizer(&mut draft, table),
            ("activation_checkpointing", Some(table)) => recompute(&mut draft, table),
            ("tensor_parallel", Some(table)) => tensor_parallel(&mut draft, table),
            ("pipeline", Some(table)) => pipeline(&mut draft, table),
            ("data_types", Some(table)) => data_types(&mut draft, table),
            _ => scalar(&mut draft, field, value),
        }
    }
    // After the optimizer, whose learning rate a schedule replaces.
    match fields.get("scheduler").and_then(Value::as_object) {
        Some(table) => scheduler(&mut draft, table),
        None if uses_trainer || !fields.contains_key("optimizer") => {}
        None => {
            let from = "without a scheduler, DeepSpeed keeps the learning rate";
            draft.set("optim.schedule", quoted("constant"), from);
            draft.set("optim.warmup_steps", 0, from);
        }
    }
    batches(&mut draft, fields, options);
    let head =
        format!("Recipe from {name}, a DeepSpeed configuration, which has no model and no data.");
    Ok(draft.finish(&head))
}

/// `train_batch_size` = micro-batch size x accumulation x data-parallel degree, any two of which
/// determine the third.
fn batches(draft: &mut Draft, fields: &Map<String, Value>, options: Options) {
    let mut number = |name: &'static str| count(draft, name, fields.get(name)?);
    let (batch, micro, accumulation) =
        (number(TRAIN_BATCH), number(MICRO_BATCH), number(ACCUMULATION));
    let degree = |name: [&str; 2]| {
        let table = fields.get(name[0])?.as_object()?;
        table.get(name[1]).and_then(whole).filter(|degree| *degree > 0)
    };
    let tensor = degree(["tensor_parallel", "autotp_size"]).unwrap_or(1);
    let stages = degree(["pipeline", "stages"]).unwrap_or(1);
    let each = tensor.saturating_mul(stages);
    let implied = match (batch, micro, accumulation) {
        (Some(batch), Some(micro), Some(steps)) => quotient(batch, micro.saturating_mul(steps)),
        _ => None,
    };
    if let (Some(batch), Some(micro), Some(steps), None) = (batch, micro, accumulation, implied) {
        let reason = format!(
            "is not {MICRO_BATCH} x {ACCUMULATION} = {} times a number of GPUs",
            micro.saturating_mul(steps)
        );
        draft.list(TRAIN_BATCH, batch, reason);
    }
    let requested = options.workers.map(|workers| (workers as u64 / each).max(1));
    let replicas = requested.or(implied);
    let usual = (Recipe::default().run.workers as u64 / each).max(1);
    let assumed = replicas.unwrap_or(usual);
    if let Some(replicas) = replicas {
        let from = if requested.is_some() {
            "--workers".to_owned()
        } else {
            format!("{TRAIN_BATCH} / ({MICRO_BATCH} x {ACCUMULATION})")
        };
        draft.set("run.workers", replicas.saturating_mul(each), &from);
    } else if each > 1 {
        draft.set("run.workers", usual * each, "one replica");
    }
    let steps = accumulation.unwrap_or(1);
    let total = batch.or_else(|| Some(micro?.saturating_mul(steps).saturating_mul(assumed)));
    let per_pass = micro.or_else(|| quotient(batch?, steps.saturating_mul(assumed)));
    if let Some(total) = total {
        let from = if batch.is_some() { TRAIN_BATCH } else { MICRO_BATCH };
        draft.set("train.batch", total, from);
    }
    if let Some(per_pass) = per_pass {
        let from = if micro.is_some() { MICRO_BATCH } else { TRAIN_BATCH };
        draft.set("train.microbatch", per_pass, from);
    }
    let depends = replicas.is_none() && (batch.is_none() && micro.is_some());
    let divided = replicas.is_none() && micro.is_none() && batch.is_some();
    if depends || (divided && accumulation.is_some()) {
        let plural = if assumed == 1 { "" } else { "s" };
        draft.list(
            if depends { TRAIN_BATCH } else { MICRO_BATCH },
            "",
            format!(
                "depends on the number of GPUs; computed for {assumed} replica{plural}: pass \
                 --workers for another number"
            ),
        );
    }
    leaves(draft, total, per_pass, replicas);
}

/// Reduction leaves: a power of two that divides the micro-batches of a step, at least the number
/// of replicas where that is possible.
fn leaves(draft: &mut Draft, total: Option<u64>, per_pass: Option<u64>, replicas: Option<u64>) {
    let usual = Recipe::default();
    let micro = per_pass.unwrap_or(usual.train.microbatch_size as u64);
    let Some(microbatches) = total.and_then(|total| quotient(total, micro)) else {
        if total.is_some() && per_pass.is_none() {
            // Our usual micro-batch does not divide this batch.
            draft.set("train.microbatch", 1, "divides every batch");
            leaves(draft, total, Some(1), replicas);
        }
        return;
    };
    let default = usual.num_leaves() as u64;
    let needed = replicas.unwrap_or(1).next_power_of_two().max(default).min(MAX_LEAVES);
    let largest = 1u64 << microbatches.trailing_zeros().min(needed.trailing_zeros());
    if largest != default {
        let from = format!("divides the {microbatches} micro-batches of a step");
        draft.set("numerics.invariant_up_to", largest, &from);
    }
}

/// Largest number of reduction leaves.
const MAX_LEAVES: u64 = MAX_WORKERS as u64;

fn fp16(draft: &mut Draft, table: &Map<String, Value>) {
    if !is_on(draft, "fp16", table, "fp16", "precision.compute = \"fp16\"") {
        return;
    }
    draft.set("precision.compute", quoted("fp16"), "fp16.enabled");
    let largest = i64::from(LossScale::MAX.exponent());
    let number = |name| table.get(name).and_then(whole);
    match number("loss_scale") {
        None | Some(0) => {
            let window = number("loss_scale_window");
            let from = if window.is_some() { "fp16.loss_scale_window" } else { DEFAULT };
            draft.set("precision.loss_scale_interval", window.unwrap_or(1000), from);
        }
        Some(scale) if scale.is_power_of_two() && scale <= 1 << largest => {
            draft.set("precision.loss_scale", scale, "fp16.loss_scale");
        }
        Some(scale) => {
            let reason = format!("a static loss scale is a power of two up to 2^{largest}");
            draft.list("fp16.loss_scale", scale, reason);
        }
    }
    if let Some(power) = number("initial_scale_power") {
        let start = i64::try_from(power).unwrap_or(i64::MAX).min(largest);
        draft.set("precision.loss_scale_start", 1u64 << start, "fp16.initial_scale_power");
        if power > largest as u64 {
            let reason = format!("the largest loss scale is 2^{largest}, where the run starts");
            draft.list("fp16.initial_scale_power", power, reason);
        }
    }
    let known = ["enabled", "loss_scale", "loss_scale_window", "initial_scale_power"];
    list_others(draft, "fp16", "fp16", table, &known);
}

fn bf16(draft: &mut Draft, name: &str, table: &Map<String, Value>) {
    if !is_on(draft, name, table, "bf16", "precision.compute = \"bf16\"") {
        return;
    }
    draft.set("precision.compute", quoted("bf16"), &format!("{name}.enabled"));
    list_others(draft, "bf16", name, table, &["enabled"]);
}

fn autocast(draft: &mut Draft, table: &Map<String, Value>) {
    let path = "torch_autocast";
    if !is_on(draft, path, table, "bf16", "precision.compute = \"bf16\"") {
        return;
    }
    let format = table.get("dtype").and_then(Value::as_str).unwrap_or("bfloat16");
    match number_format(format) {
        Some(ours) => draft.set("precision.compute", quoted(ours), "torch_autocast.dtype"),
        None => draft.list("torch_autocast.dtype", format, "no such number format here"),
    }
    if let Some(modules) = table.get("lower_precision_safe_modules") {
        let reason = "all matrix products have the format of precision.compute";
        draft.list("torch_autocast.lower_precision_safe_modules", modules, reason);
    }
}

fn zero(draft: &mut Draft, table: &Map<String, Value>) {
    let stage = table.get("stage").and_then(whole).unwrap_or(0);
    for (field, value) in table {
        let path = format!("zero_optimization.{field}");
        if is_auto(value) {
            draft.list(&path, value, auto_reason(field));
            continue;
        }
        match (field.as_str(), value) {
            ("stage", _) => match whole(value).filter(|stage| *stage <= 3) {
                Some(stage) => draft.set("parallel.zero", stage, &path),
                None => draft.list(&path, value, "stages are 0, 1, 2 and 3"),
            },
            ("overlap_comm", Value::Bool(overlap)) => draft.set("parallel.overlap", overlap, &path),
            ("reduce_bucket_size", _) if whole(value).is_some() => {
                // Elements there, bytes of f32 here.
                let bytes = whole(value).unwrap_or_default().saturating_mul(4);
                draft.set("parallel.bucket_bytes", bytes, &path);
            }
            ("offload_optimizer", Value::Object(table)) => offload(draft, &path, table, true),
            ("offload_param", Value::Object(table)) => offload(draft, &path, table, false),
            ("offload_optimizer" | "offload_param", Value::Null)
            | ("cpu_offload" | "cpu_offload_params" | "cpu_offload_param", Value::Bool(false)) => {}
            ("cpu_offload" | "cpu_offload_params" | "cpu_offload_param", _) => {
                draft.list(&path, value, IN_HOST_MEMORY);
            }
            _ => draft.list(&path, value, reason("zero_optimization", field)),
        }
    }
    // At stage 3 DeepSpeed overlaps unless the file says otherwise.
    if stage < 3 && !table.contains_key("overlap_comm") && stage > 0 {
        draft.set("parallel.overlap", false, DEFAULT);
    }
}

fn offload(draft: &mut Draft, path: &str, table: &Map<String, Value>, is_state: bool) {
    let device = table.get("device").and_then(Value::as_str).unwrap_or("cpu");
    let place = format!("{path}.device");
    match device {
        "none" => return,
        "nvme" if is_state => {
            draft.set("offload.state", quoted("file"), &place);
            match table.get("nvme_path").and_then(Value::as_str) {
                Some(folder) => {
                    draft.set("offload.folder", quoted(folder), &format!("{path}.nvme_path"));
                }
                None => draft.list(
                    &format!("{path}.nvme_path"),
                    "",
                    "the files are on the disk of the run folder; set offload.folder for another",
                ),
            }
        }
        "nvme" => draft.list(&place, quoted(device), "weights stay in memory"),
        "cpu" => draft.list(&place, quoted(device), IN_HOST_MEMORY),
        _ => draft.list(&place, quoted(device), auto_reason("offload")),
    }
    let is_file = device == "nvme" && is_state;
    let known: &[&str] = if is_file { &["device", "nvme_path"] } else { &["device"] };
    list_others(draft, "offload", path, table, known);
}

fn recompute(draft: &mut Draft, table: &Map<String, Value>) {
    let is_used = |value: &Value| match value {
        Value::Bool(flag) => *flag,
        Value::Number(_) => true,
        _ => false,
    };
    // A section of falses is a template; the model decides whether to checkpoint.
    if !table.values().any(is_used) {
        return;
    }
    draft.set("parallel.recompute", quoted("full"), "activation_checkpointing");
    for (field, value) in table.iter().filter(|(_, value)| is_used(value)) {
        let path = format!("activation_checkpointing.{field}");
        draft.list(&path, value, reason("activation_checkpointing", field));
    }
}

fn tensor_parallel(draft: &mut Draft, table: &Map<String, Value>) {
    for (field, value) in table {
        let path = format!("tensor_parallel.{field}");
        match (field.as_str(), whole(value)) {
            ("autotp_size", Some(0)) => {}
            ("autotp_size", Some(degree)) => draft.set("parallel.tensor", degree, &path),
            _ => draft.list(&path, value, reason("tensor_parallel", field)),
        }
    }
}

fn pipeline(draft: &mut Draft, table: &Map<String, Value>) {
    for (field, value) in table {
        let path = format!("pipeline.{field}");
        match (field.as_str(), whole(value)) {
            ("stages", Some(stages)) if stages > 0 => draft.set("parallel.pipeline", stages, &path),
            ("stages", _) => draft.list(&path, value, "set parallel.pipeline"),
            ("partition", _) => {
                draft.list(&path, value, "stages are balanced; set parallel.partition");
            }
            ("activation_checkpoint_interval", Some(0)) => {}
            ("activation_checkpoint_interval", Some(layers)) => {
                draft.set("parallel.recompute", quoted(&format!("every-{layers}")), &path);
            }
            _ => draft.list(&path, value, IMPLEMENTATION),
        }
    }
}

fn data_types(draft: &mut Draft, table: &Map<String, Value>) {
    for (field, value) in table {
        let is_f32 = value.as_str().and_then(number_format) == Some("f32");
        if field == "grad_accum_dtype" && (is_f32 || value.is_null()) {
            continue;
        }
        draft.list(&format!("data_types.{field}"), value, "gradients are accumulated in f32");
    }
}

/// Fields of the root that are not sections with settings of their own.
fn scalar(draft: &mut Draft, field: &str, value: &Value) {
    if is_auto(value) {
        return draft.list(field, value, auto_reason(field));
    }
    let is_off = value.get("enabled").and_then(Value::as_bool) == Some(false);
    match (field, value.as_f64(), value) {
        ("gradient_clipping", Some(norm), _) => {
            draft.set("optim.clip", format!("{norm:?}"), field);
        }
        ("communication_data_type", _, Value::Null)
        | ("gradient_predivide_factor", Some(1.0), _)
        | (
            "dataloader_drop_last"
            | "prescale_gradients"
            | "sparse_gradients"
            | "dump_state"
            | "wall_clock_breakdown"
            | "memory_breakdown",
            _,
            Value::Bool(false),
        ) => {}
        ("communication_data_type", _, Value::String(name)) => match number_format(name) {
            Some(ours) => draft.set("precision.wire", quoted(ours), field),
            None => draft.list(field, value, "no such number format here"),
        },
        ("gradient_allreduce_op", _, Value::String(op)) if op == "mean" => {}
        ("dataloader_drop_last", _, Value::Bool(true)) => {
            draft.set("data.last_batch", quoted("drop"), field);
        }
        ("seed", Some(_), _) if whole(value).is_some() => {
            draft.set("train.seed", whole(value).unwrap_or_default(), field);
        }
        _ if is_off => {}
        _ => draft.list(field, value, reason("", field)),
    }
}

/// Whether a section is on; lists an `enabled` of `"auto"`.
fn is_on(
    draft: &mut Draft,
    path: &str,
    table: &Map<String, Value>,
    argument: &str,
    setting: &str,
) -> bool {
    match table.get("enabled") {
        Some(Value::Bool(flag)) => *flag,
        Some(value) if is_auto(value) => {
            let reason =
                format!("filled in by the Trainer's argument {argument}; set {setting} for it");
            draft.list(&format!("{path}.enabled"), value, reason);
            false
        }
        Some(value) => {
            draft.list(&format!("{path}.enabled"), value, "is neither true nor false");
            false
        }
        None => false,
    }
}

/// A count of at least 1; lists anything else.
fn count(draft: &mut Draft, name: &'static str, value: &Value) -> Option<u64> {
    match whole(value) {
        Some(number) if number > 0 => Some(number),
        _ if is_auto(value) => {
            draft.list(name, value, auto_reason(name));
            None
        }
        _ => {
            draft.list(name, value, "is not a whole number of at least 1");
            None
        }
    }
}
