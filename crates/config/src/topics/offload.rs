//! Offload of optimizer state to disk, and of activations to host memory.

use super::Recipe;
use crate::field::{AUTO, Field, auto_value};
use crate::topic::{choices, topic};
use crate::value::Value;
use crate::value_type::ValueType;

topic! {
    /// Offload to disk and host memory. Never changes a bit of the result.
    #[derive(Eq)]
    pub struct Offload at offload, table "offload", layout() {
        /// Where the optimizer state is kept: none in memory, file in an unlinked file per worker
        /// of which a few mebibytes at a time are in memory. The file disappears with the worker.
        state: OffloadState = "none";

        /// Folder of the offload files, on a disk with enough space; empty uses the disk of the run
        /// folder.
        folder: String = "", when("offload.state", &["file"]);

        /// Where the activations that a layer saves for its backward pass are kept: none on the
        /// device, host in pinned host memory. They leave while later layers compute, and return
        /// ahead of the backward pass; the device holds those of two layers. auto is host where
        /// that is faster, by an estimate, than all settings without it that fit.
        activations: OffloadActivations = "none", of(ValueType::Choice(NAMES_OR_AUTO)),
            access(|r| Some(activations_value(r)), set_activations);

        /// Whether the place of activations is chosen by memory; none until then.
        field activations_is_auto: bool;
    }
}

choices! {
    /// Where the optimizer state is kept.
    OffloadState {
        /// In memory.
        None = "none",
        /// In a file that is mapped in pieces.
        File = "file",
    }

    /// Where activations between forward and backward passes are kept.
    OffloadActivations {
        /// On the device.
        None = "none",
        /// In pinned host memory.
        Host = "host",
    }
}

/// Names that the key accepts.
const NAMES_OR_AUTO: &[&str] = &["none", "host", AUTO];

fn activations_value(recipe: &Recipe) -> Value {
    auto_value(&recipe.offload.activations, recipe.offload.activations_is_auto)
}

fn set_activations(recipe: &mut Recipe, value: &Value) {
    let is_auto = value.as_text() == AUTO;
    let place =
        if is_auto { OffloadActivations::None } else { OffloadActivations::from_value(value) };
    (recipe.offload.activations, recipe.offload.activations_is_auto) = (place, is_auto);
}
