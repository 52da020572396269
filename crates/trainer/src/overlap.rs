//! Tensors that a model takes of a folder that is not its own (`model.partial`).

use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of tensor names in a warning.
const MAX_NAMED: usize = 8;

/// Tensors of a folder that a model loads, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Loaded: equal name and shape.
    pub taken: BTreeSet<String>,
    /// Missing in the folder; they keep their initial values.
    pub missing: Vec<String>,
    /// Another shape in the folder; they keep their initial values.
    pub reshaped: Vec<String>,
    /// Not part of the model; they are ignored.
    pub extra: Vec<String>,
}

impl Overlap {
    pub(crate) fn new(
        needed: &BTreeMap<String, Vec<usize>>,
        found: &BTreeMap<String, Vec<usize>>,
    ) -> Self {
        let mut overlap = Self::default();
        for (name, shape) in needed {
            match found.get(name) {
                Some(other) if other == shape => {
                    overlap.taken.insert(name.clone());
                }
                Some(_) => overlap.reshaped.push(name.clone()),
                None => overlap.missing.push(name.clone()),
            }
        }
        let is_extra = |name: &&String| !needed.contains_key(*name);
        overlap.extra = found.keys().filter(is_extra).cloned().collect();
        overlap
    }

    /// Warning lines about the overlap.
    pub(crate) fn lines(&self, dir: &str) -> Vec<String> {
        let num_needed = self.taken.len() + self.missing.len() + self.reshaped.len();
        let mut lines =
            vec![format!("took {} of {num_needed} tensors from {dir}", self.taken.len())];
        for (names, what) in [
            (&self.missing, "are missing there and keep their initial values"),
            (&self.reshaped, "have another shape there and keep their initial values"),
            (&self.extra, "are ignored: this model has no such tensors"),
        ] {
            if !names.is_empty() {
                let shown = names.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
                let more = if names.len() > MAX_NAMED { ", …" } else { "" };
                lines.push(format!("{} {what}: {shown}{more}", names.len()));
            }
        }
        lines
    }
}
