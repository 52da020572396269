//! `optimizer` and `scheduler` of a DeepSpeed configuration.

use serde_json::{Map, Value};

use super::field::{DEFAULT, auto_reason, is_auto, whole};
use super::reason::{list_others, reason};
use crate::import::draft::Draft;
use crate::topics::OptimName;
use crate::value::quoted;

pub(super) fn optimizer(draft: &mut Draft, table: &Map<String, Value>) {
    let none = Map::new();
    let params = table.get("params").and_then(Value::as_object).unwrap_or(&none);
    let Some(name) = table.get("type").and_then(Value::as_str) else {
        let given = table.get("type").map(Value::to_string).unwrap_or_default();
        return draft.list("optimizer.type", given, "names no optimizer; set optim.name");
    };
    let flag = |name: &str| params.get(name).and_then(Value::as_bool);
    let momentum = params.get("momentum").and_then(Value::as_f64).unwrap_or(0.0);
    let ours = match name.to_lowercase().as_str() {
        // DeepSpeed's Adam decouples the weight decay unless adam_w_mode is false.
        "adam" if flag("adam_w_mode") == Some(false) => "adam",
        "adam" | "adamw" => "adamw",
        "lamb" => "lamb",
        "lion" => "lion",
        "muon" => {
            let reason = "scales updates by the shape of a matrix in another manner; set \
                          optim.name = \"muon\" with a learning rate of AdamW";
            return draft.list("optimizer.type", quoted(name), reason);
        }
        "adafactor" => {
            let reason = "scales the learning rate by the size of each tensor; set optim.name = \
                          \"adafactor\" with an absolute learning rate";
            return draft.list("optimizer.type", quoted(name), reason);
        }
        "sgd" if flag("nesterov") == Some(true) => "nesterov",
        "sgd" if momentum > 0.0 => "momentum",
        "sgd" => "sgd",
        "onebitadam" => "adam",
        _ => {
            let names = OptimName::NAMES.join(", ");
            let reason = format!("no such optimizer here; optim.name is one of {names}");
            return draft.list("optimizer.type", quoted(name), reason);
        }
    };
    draft.set("optim.name", quoted(ours), "optimizer.type");
    if name.eq_ignore_ascii_case("onebitadam") {
        draft.set("compress.method", quoted("one-bit-adam"), "optimizer.type");
        let steps = params.get("freeze_step").and_then(whole);
        let from = if steps.is_some() { "optimizer.params.freeze_step" } else { DEFAULT };
        draft.set("compress.warmup_steps", steps.unwrap_or(100_000), from);
    }
    let is_adaptive = matches!(ours, "adam" | "adamw" | "lamb");
    let has_betas = is_adaptive || ours == "lion";
    for (field, value) in params {
        optimizer_field(draft, field, value, ours, [is_adaptive, has_betas]);
    }
    if name.eq_ignore_ascii_case("onebitadam") {
        if let Some((norm, from)) = draft.remove("optim.clip") {
            draft.list(&from, norm, "1-bit Adam sends the momentum of unclipped gradients");
        }
        draft.set("optim.clip", "0.0", "1-bit Adam sends the momentum of unclipped gradients");
    }
    let mut absent = |name: &str, key, value: f64| {
        if !params.contains_key(name) {
            draft.set(key, format!("{value:?}"), DEFAULT);
        }
    };
    absent("lr", "optim.lr", 1e-3);
    absent("weight_decay", "optim.weight_decay", 0.0);
    if has_betas {
        absent("betas", "optim.beta1", 0.9);
        absent("betas", "optim.beta2", if is_adaptive { 0.999 } else { 0.99 });
    }
    if is_adaptive {
        absent("eps", "optim.eps", 1e-8);
    }
    list_others(draft, "optimizer", "optimizer", table, &["type", "params"]);
}

fn optimizer_field(
    draft: &mut Draft,
    field: &str,
    value: &Value,
    ours: &str,
    [is_adaptive, has_betas]: [bool; 2],
) {
    let path = format!("optimizer.params.{field}");
    if is_auto(value) {
        return draft.list(&path, value, auto_reason(field));
    }
    match (field, value.as_f64(), value) {
        ("lr", Some(number), _) => draft.set("optim.lr", format!("{number:?}"), &path),
        ("weight_decay", Some(number), _) => {
            draft.set("optim.weight_decay", format!("{number:?}"), &path);
        }
        ("eps", Some(number), _) if is_adaptive => {
            draft.set("optim.eps", format!("{number:?}"), &path);
        }
        ("betas", _, Value::Array(betas)) if has_betas && betas.len() == 2 => {
            for (key, beta) in ["optim.beta1", "optim.beta2"].into_iter().zip(betas) {
                match beta.as_f64() {
                    Some(beta) => draft.set(key, format!("{beta:?}"), &path),
                    None => draft.list(&path, beta, "is not a number"),
                }
            }
        }
        ("momentum", Some(number), _) if matches!(ours, "momentum" | "nesterov") => {
            draft.set("optim.momentum", format!("{number:?}"), &path);
        }
        ("momentum", Some(0.0), _)
        | ("nesterov" | "adam_w_mode" | "freeze_step", ..)
        | ("bias_correction", _, Value::Bool(true))
        | ("amsgrad", _, Value::Bool(false)) => {}
        ("max_grad_norm", Some(number), _) => draft.set("optim.clip", format!("{number:?}"), &path),
        _ => draft.list(&path, value, reason("optimizer.params", field)),
    }
}

pub(super) fn scheduler(draft: &mut Draft, table: &Map<String, Value>) {
    let none = Map::new();
    let params = table.get("params").and_then(Value::as_object).unwrap_or(&none);
    let name = table.get("type").and_then(Value::as_str).unwrap_or_default();
    let (ours, last) = match name {
        "WarmupLR" => ("constant", None),
        "WarmupDecayLR" => ("linear", Some((0.0, "the decay ends at zero"))),
        "WarmupCosineLR" => ("cosine", Some((1e-4, DEFAULT))),
        _ => {
            let reason = "no such schedule here; optim.schedule is constant, cosine, linear, step \
                          or wsd";
            return draft.list("scheduler.type", quoted(name), reason);
        }
    };
    draft.set("optim.schedule", quoted(ours), "scheduler.type");
    if let Some((fraction, from)) = last {
        draft.set("optim.final_lr_fraction", format!("{fraction:?}"), from);
    }
    for (field, value) in params {
        let path = format!("scheduler.params.{field}");
        if is_auto(value) {
            draft.list(&path, value, auto_reason(field));
            continue;
        }
        match (field.as_str(), whole(value), value.as_f64()) {
            ("warmup_num_steps", Some(steps), _) => draft.set("optim.warmup_steps", steps, &path),
            ("total_num_steps", Some(steps), _) => draft.set("train.steps", steps, &path),
            ("warmup_max_lr", _, Some(rate)) => draft.set("optim.lr", format!("{rate:?}"), &path),
            ("cos_min_ratio", _, Some(fraction)) if ours == "cosine" => {
                draft.set("optim.final_lr_fraction", format!("{fraction:?}"), &path);
            }
            ("warmup_min_lr" | "warmup_min_ratio", _, Some(0.0)) | ("last_batch_iteration", ..) => {
            }
            ("warmup_type", ..) if value.as_str() == Some("linear") => {}
            _ => draft.list(&path, value, reason("scheduler.params", field)),
        }
    }
    if !params.contains_key("warmup_type") {
        let reason = "DeepSpeed's default is logarithmic; the warm-up is linear here";
        draft.list("scheduler.params.warmup_type", "", reason);
    }
    if !params.contains_key("warmup_num_steps") {
        draft.set("optim.warmup_steps", 1000, DEFAULT);
    }
    // A WarmupLR keeps its learning rate, and has no such field.
    let has_end = ours != "constant";
    let is_auto_end = params.get("total_num_steps").is_some_and(is_auto);
    if has_end && !draft.has("train.steps") && !is_auto_end {
        draft.list("scheduler.params.total_num_steps", "", "set train.steps");
    }
}
