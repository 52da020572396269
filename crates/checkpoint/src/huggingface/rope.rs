//! Rotary angles in a `config.json`: `rope_theta`, and their scaling in `rope_scaling`
//! (`transformers` 4) or `rope_parameters` (5), which mean the same.

use lockstep_config::{RopeScaling, RopeScalingKind};
use serde_json::{Map, Value, json};

use super::reader::Reader;

const DEFAULT_THETA: f64 = 10_000.0;

/// Options of the scaled angles, in the order of preference of `transformers`.
const GROUPS: [&str; 2] = ["rope_scaling", "rope_parameters"];

/// Members of every group.
const COMMON: &[&str] = &["rope_type", "type", "rope_theta", PARTIAL];

/// Fraction of each head that is turned.
pub(super) const PARTIAL: &str = "partial_rotary_factor";

/// Angles of a file.
pub(super) struct Angles {
    /// Base of the angles.
    pub(super) theta: f64,
    /// Fraction of each head that is turned, where the group says it.
    pub(super) partial: Option<f64>,
    pub(super) scaling: RopeScaling,
}

/// Angles of a model with this number of positions, whose base `theta_key` names as well.
pub(super) fn read(
    reader: &mut Reader<'_>,
    context: Option<usize>,
    theta_key: &str,
    may_be_partial: bool,
) -> Option<Angles> {
    let theta = reader.number("rope_theta", DEFAULT_THETA)?;
    let theta = reader.number(theta_key, theta)?;
    let is_present = |key: &&&str| reader.value(key).is_some_and(|value| *value != json!({}));
    let Some(key) = GROUPS.iter().find(is_present).copied() else {
        return Some(Angles { theta, partial: None, scaling: RopeScaling::NONE });
    };
    let members = reader.value(key).and_then(Value::as_object);
    let Some(members) = members else {
        reader.refuse(key, "is not a group of options");
        return None;
    };
    match scaling(members, context, may_be_partial) {
        Ok((scaling, partial)) => {
            let inner = members.get("rope_theta").and_then(Value::as_f64);
            Some(Angles { theta: inner.unwrap_or(theta), partial, scaling })
        }
        Err(rule) => {
            reader.refuse(key, &rule);
            None
        }
    }
}

/// Scaling of a group and the fraction of a head that is turned, or the reason of a refusal.
fn scaling(
    members: &Map<String, Value>,
    context: Option<usize>,
    may_be_partial: bool,
) -> Result<(RopeScaling, Option<f64>), String> {
    let name = members.get("rope_type").or_else(|| members.get("type"));
    let name = name.map_or(Some("default"), Value::as_str).unwrap_or_default();
    let (kind, own): (_, &[&str]) = match name {
        "default" => (RopeScalingKind::None, &[]),
        "linear" => (RopeScalingKind::Linear, &["factor"]),
        "dynamic" => (RopeScalingKind::Dynamic, &["factor", ORIGINAL]),
        "llama3" => {
            (RopeScalingKind::Llama3, &["factor", ORIGINAL, "low_freq_factor", "high_freq_factor"])
        }
        "yarn" => (
            RopeScalingKind::Yarn,
            &[
                "factor",
                ORIGINAL,
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
            ],
        ),
        _ => {
            let known = "default, linear, dynamic, llama3 and yarn are";
            return Err(format!("is not supported: of the rope_types {known}"));
        }
    };
    let known = |key: &str| COMMON.contains(&key) || own.contains(&key);
    if let Some(key) = members.keys().find(|key| !known(key)) {
        let key = crate::error::quoted(key);
        return Err(format!("is not supported: {key} is not an option of rope_type \"{name}\""));
    }
    let partial = number(members, PARTIAL)?;
    if !may_be_partial && partial.is_some_and(|part| (part - 1.0).abs() > 0.0) {
        return Err("is not supported: only a partial_rotary_factor of 1.0 is".to_owned());
    }
    number(members, "rope_theta")?;
    let none = RopeScaling { kind, ..RopeScaling::NONE };
    if kind == RopeScalingKind::None {
        return Ok((none, partial));
    }
    let factor = needed(members, "factor")?;
    let original = match members.get(ORIGINAL).filter(|value| !value.is_null()) {
        None => context,
        Some(value) => {
            let length = value.as_u64().and_then(|length| usize::try_from(length).ok());
            let refusal = || format!("is not supported: {ORIGINAL} is not a whole number");
            Some(length.ok_or_else(refusal)?)
        }
    };
    let scaled = RopeScaling { factor, original_context: original, ..none };
    let scaling = match kind {
        RopeScalingKind::Llama3 => RopeScaling {
            low_frequency: needed(members, "low_freq_factor")?,
            high_frequency: needed(members, "high_freq_factor")?,
            ..scaled
        },
        RopeScalingKind::Yarn => yarn(members, scaled)?,
        _ => RopeScaling { original_context: None, ..scaled },
    };
    Ok((scaling, partial))
}

const ORIGINAL: &str = "original_max_position_embeddings";

/// The numbers of `YaRN`; those that are absent or zero have the defaults of `transformers`.
fn yarn(members: &Map<String, Value>, scaled: RopeScaling) -> Result<RopeScaling, String> {
    let nonzero = |key: &str| number(members, key).map(|value| value.filter(|v| v.abs() > 0.0));
    let scales = (nonzero("mscale")?, nonzero("mscale_all_dim")?);
    let attention_factor = match (number(members, "attention_factor")?, scales) {
        (Some(factor), _) => Some(factor),
        (None, (Some(mscale), Some(all))) => {
            Some(magnitude(scaled.factor, mscale) / magnitude(scaled.factor, all))
        }
        (None, _) => None,
    };
    let truncate = match members.get("truncate").filter(|value| !value.is_null()) {
        None => true,
        Some(value) => value.as_bool().ok_or("is not supported: truncate is not true or false")?,
    };
    Ok(RopeScaling {
        attention_factor,
        beta_fast: nonzero("beta_fast")?.unwrap_or(scaled.beta_fast),
        beta_slow: nonzero("beta_slow")?.unwrap_or(scaled.beta_slow),
        truncate,
        ..scaled
    })
}

/// Growth of the attention logits with the factor (Peng et al. 2023, eq. 22).
fn magnitude(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

fn needed(members: &Map<String, Value>, key: &str) -> Result<f64, String> {
    number(members, key)?.ok_or_else(|| format!("is not supported: it has no {key}"))
}

fn number(members: &Map<String, Value>, key: &str) -> Result<Option<f64>, String> {
    let Some(value) = members.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    let number = value.as_f64().filter(|number| number.is_finite());
    number.map(Some).ok_or_else(|| format!("is not supported: {key} is not a number"))
}

/// The group that [`read`] understands, as both versions of `transformers` do; none for angles
/// that are not scaled.
pub(super) fn group(scaling: &RopeScaling) -> Option<Value> {
    let RopeScaling { kind, factor, original_context, .. } = *scaling;
    let name = kind.name();
    match kind {
        RopeScalingKind::None => None,
        RopeScalingKind::Linear | RopeScalingKind::Dynamic => {
            Some(json!({"rope_type": name, "factor": factor}))
        }
        RopeScalingKind::Llama3 => Some(json!({
            "rope_type": name,
            "factor": factor,
            "original_max_position_embeddings": original_context,
            "low_freq_factor": scaling.low_frequency,
            "high_freq_factor": scaling.high_frequency,
        })),
        RopeScalingKind::Yarn => {
            let mut group = json!({
                "rope_type": name,
                "factor": factor,
                "original_max_position_embeddings": original_context,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.truncate,
            });
            if let Some(attention_factor) = scaling.attention_factor {
                group["attention_factor"] = attention_factor.into();
            }
            Some(group)
        }
    }
}
