//! Names in a state dictionary: parameters of the model, and state of its optimizer.
//!
//! Programs put the model anywhere in what they save: `model.…`, `app.model.…`, or at the top. The
//! token embedding, which every supported model has, tells where it is. State of the optimizer is
//! `….state.<parameter>.exp_avg`, as `torch.distributed.checkpoint.state_dict` names it.

use std::collections::BTreeMap;

/// Last parts of the names of token embeddings.
const TABLES: [&str; 4] =
    ["embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight"];

/// Prefix of a parameter in the name of its state.
const STATE: &str = "state.";

/// State of the optimizer by its PyTorch name, and by the engine's.
const STATE_NAMES: [(&str, &str); 2] = [("exp_avg", "m"), ("exp_avg_sq", "v")];

/// Number of updates of a parameter.
const STEP: &str = "step";

/// The stored names of a state dictionary.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// Stored names of parameters and buffers, by the model's own names.
    pub(super) model: BTreeMap<String, String>,
    /// Stored names of optimizer state, by the parameter's own name and the engine's kind.
    pub(super) state: BTreeMap<(String, &'static str), String>,
    /// Stored names of update counts.
    pub(super) steps: Vec<String>,
}

impl Names {
    /// Sorts stored names. Without a token embedding there is no model.
    pub(super) fn sort<'a>(stored: impl Iterator<Item = &'a str> + Clone) -> Self {
        let mut names = Self::default();
        let prefix = stored.clone().filter(|name| state_of(name).is_none()).find_map(model_prefix);
        for name in stored {
            match (state_of(name), prefix.and_then(|prefix| name.strip_prefix(prefix))) {
                (Some((_, STEP)), _) => names.steps.push(name.to_owned()),
                (Some((param, kind)), _) => {
                    let ours = STATE_NAMES.iter().find(|(theirs, _)| *theirs == kind);
                    if let Some((_, ours)) = ours {
                        names.state.insert((param.to_owned(), *ours), name.to_owned());
                    }
                }
                (None, Some(own)) => {
                    names.model.insert(own.to_owned(), name.to_owned());
                }
                (None, None) => {}
            }
        }
        names
    }

    /// Whether optimizer state is by the number of a parameter instead of its name.
    pub(super) fn is_by_number(&self) -> bool {
        let is_number = |(param, _): &(String, &str)| param.bytes().all(|b| b.is_ascii_digit());
        self.state.keys().any(is_number)
    }
}

/// Prefix of the model's own names, if the name is that of its token embedding.
fn model_prefix(name: &str) -> Option<&str> {
    let table = TABLES.into_iter().find(|table| name.ends_with(table))?;
    let before = name.strip_suffix(table)?;
    // The model's own names begin with its base model, which may be missing.
    let before = ["model.", "transformer.", "gpt_neox."]
        .into_iter()
        .find_map(|base| {
            let outer = before.strip_suffix(base)?;
            // A bare base model that was saved as `model` looks alike; both names mean the same.
            (outer.is_empty() || outer.ends_with('.')).then_some(outer)
        })
        .unwrap_or(before);
    (before.is_empty() || before.ends_with('.')).then_some(before)
}

/// Parameter and kind, if the name is that of optimizer state.
fn state_of(name: &str) -> Option<(&str, &str)> {
    let start = match name.strip_prefix(STATE) {
        Some(_) => 0,
        None => name.find(".state.")? + 1,
    };
    let (param, kind) = name[start + STATE.len()..].rsplit_once('.')?;
    let is_kind = kind == STEP || STATE_NAMES.iter().any(|(theirs, _)| *theirs == kind);
    is_kind.then_some((param, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found_wherever_it_was_put() {
        for (prefix, own) in [
            ("", "model.embed_tokens.weight"),
            ("model.", "model.embed_tokens.weight"),
            ("app.model.", "model.embed_tokens.weight"),
            ("net.", "embed_tokens.weight"),
            ("", "wte.weight"),
            ("m.", "transformer.wte.weight"),
        ] {
            let stored = [format!("{prefix}{own}"), "optim.param_groups.0.lr".to_owned()];
            let names = Names::sort(stored.iter().map(String::as_str));
            assert_eq!(names.model.get(own), Some(&stored[0]), "{stored:?}");
        }
        assert!(Names::sort(["layer.weight"].into_iter()).model.is_empty());
    }

    #[test]
    fn state_is_found_by_parameter_and_kind() {
        let stored = [
            "app.model.model.embed_tokens.weight",
            "app.optim.state.model.embed_tokens.weight.exp_avg",
            "app.optim.state.model.embed_tokens.weight.exp_avg_sq",
            "app.optim.state.model.embed_tokens.weight.step",
            "app.optim.param_groups.0.params",
        ];
        let names = Names::sort(stored.into_iter());
        let key = |kind| ("model.embed_tokens.weight".to_owned(), kind);
        assert_eq!(names.state[&key("m")], stored[1]);
        assert_eq!(names.state[&key("v")], stored[2]);
        assert_eq!((names.steps.len(), names.model.len()), (1, 1));
        assert!(!names.is_by_number());
        let stored = ["state.0.exp_avg", "wte.weight"];
        assert!(Names::sort(stored.into_iter()).is_by_number());
    }
}
