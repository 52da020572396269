//! Training state of a run next to its weights, as versioned JSON.
//!
//! The state consists of counters: data order, learning rate and dropout masks are functions of the
//! recipe and of these counters.

use std::path::Path;

use lockstep_platform::World;
use serde::{Deserialize, Serialize};

use crate::CheckpointError;
use crate::error::quoted;

/// Default file name.
pub const FILE_NAME: &str = "state.json";

/// Format version; raised when a field is renamed or removed.
pub const VERSION: u32 = 1;

/// Training state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingState {
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Fingerprint of the data; with `step` it is the data position.
    pub corpus: String,
    /// Positions of the streams of a mixture: numbers of the data loader. Empty for other data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_positions: Vec<u64>,
    /// Hash of the recipe; another recipe cannot resume from here.
    pub recipe_hash: String,
    /// Kernel class so far; another class may resume, with other bits.
    pub kernel_class: String,
    /// Algorithms of matrix products, where a device chooses among several.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub product_algorithms: String,
    /// Hash of the weights of this state.
    pub weights_hash: String,
    /// Loss scale and skipped steps.
    #[serde(default)]
    pub scaling: Scaling,
    /// Losses of all steps, for the hash of the losses.
    #[serde(with = "losses")]
    pub losses: Vec<f64>,
}

/// Loss scale and skipped steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaling {
    /// Binary exponent of the loss scale; 0 without scaling.
    pub exponent: u8,
    /// Steps since the last change or overflow.
    pub clean_steps: u64,
    /// Steps skipped since the set of trained parameters changed.
    pub num_skipped_in_phase: u64,
}

/// Losses as JSON: numbers, and the bits of non-finite ones (skipped steps).
mod losses {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Loss {
        Number(f64),
        Bits(String),
        /// A non-finite loss in older files.
        Nothing(()),
    }

    pub(super) fn serialize<S: Serializer>(losses: &[f64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(losses.iter().map(|loss| {
            let bits = || Loss::Bits(format!("{:016x}", loss.to_bits()));
            if loss.is_finite() { Loss::Number(*loss) } else { bits() }
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        let number = |loss: &Loss| match loss {
            Loss::Number(loss) => Ok(*loss),
            Loss::Nothing(()) => Ok(f64::NAN),
            Loss::Bits(bits) => u64::from_str_radix(bits, 16)
                .map(f64::from_bits)
                .map_err(|_| serde::de::Error::custom(format!("{bits} is no loss"))),
        };
        Vec::<Loss>::deserialize(from)?.iter().map(number).collect()
    }
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Serialize)]
struct Versioned<'a> {
    v: u32,
    #[serde(flatten)]
    state: &'a TrainingState,
}

impl TrainingState {
    /// Replaces the file at `path`, atomically.
    pub fn save(&self, world: &World, path: &Path) -> Result<(), CheckpointError> {
        let versioned = Versioned { v: VERSION, state: self };
        let mut text = serde_json::to_string_pretty(&versioned).expect("a state is plain data");
        text.push('\n');
        Ok(world.files().write_atomic(path, text.as_bytes())?)
    }

    /// Reads the file at `path`; unknown fields are ignored.
    pub fn load(world: &World, path: &Path) -> Result<Self, CheckpointError> {
        let bad = |error: serde_json::Error| CheckpointError::BadState {
            path: path.to_owned(),
            reason: quoted(&error.to_string()),
        };
        let bytes = world.files().read(path)?;
        let Version { v } = serde_json::from_slice(&bytes).map_err(bad)?;
        if v > VERSION {
            let path = path.to_owned();
            return Err(CheckpointError::NewerState { path, found: v, known: VERSION });
        }
        serde_json::from_slice(&bytes).map_err(bad)
    }
}

#[cfg(test)]
mod tests {
    use lockstep_config::Blame;
    use lockstep_platform::ScratchDir;

    use super::*;

    fn state() -> TrainingState {
        TrainingState {
            data_positions: vec![3, u64::MAX],
            step: 400,
            corpus: "ef".to_owned(),
            recipe_hash: "ab".to_owned(),
            kernel_class: "f32-fma".to_owned(),
            product_algorithms: String::new(),
            weights_hash: "cd".to_owned(),
            scaling: Scaling { exponent: 15, clean_steps: 7, num_skipped_in_phase: 2 },
            losses: vec![5.5, 0.1 + 0.2, 1e-300],
        }
    }

    #[test]
    fn a_state_survives_the_disk() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "state").unwrap();
        let path = scratch.path().join(FILE_NAME);
        state().save(&world, &path).unwrap();
        assert_eq!(TrainingState::load(&world, &path).unwrap(), state());
        assert!(world.files().read_to_string(&path).unwrap().starts_with("{\n  \"v\": 1,"));
    }

    #[test]
    fn non_finite_losses_survive_bit_for_bit() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "state").unwrap();
        let path = scratch.path().join(FILE_NAME);
        let odd = f64::from_bits(0xfff8_0000_0000_0123);
        let losses = vec![5.5, f64::NAN, odd, f64::INFINITY, -0.0, 7.0];
        TrainingState { losses: losses.clone(), ..state() }.save(&world, &path).unwrap();
        let found = TrainingState::load(&world, &path).unwrap().losses;
        let bits = |losses: &[f64]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&losses));
        // Older files have null for a skipped step.
        let text = world.files().read_to_string(&path).unwrap();
        let before = text.replace("\"7ff8000000000000\"", "null");
        assert_ne!(before, text);
        world.files().write_atomic(&path, before.as_bytes()).unwrap();
        assert!(TrainingState::load(&world, &path).unwrap().losses[1].is_nan());
    }

    #[test]
    fn a_state_cut_off_anywhere_is_refused_in_one_line() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "state").unwrap();
        let path = scratch.path().join(FILE_NAME);
        state().save(&world, &path).unwrap();
        let bytes = world.files().read(&path).unwrap();
        // Without its last two bytes, "}\n", it is no longer JSON.
        for end in (0..bytes.len() - 2).step_by(7) {
            world.files().create(&path).unwrap().write_all(&bytes[..end]).unwrap();
            let error = TrainingState::load(&world, &path).unwrap_err();
            assert_eq!(error.blame(), Blame::Storage);
            let start = format!("{} is not a training state: ", path.display());
            assert!(error.to_string().starts_with(&start), "{error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_newer_state_is_refused_by_its_version() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "state").unwrap();
        let path = scratch.path().join(FILE_NAME);
        world.files().write_atomic(&path, br#"{"v":2,"position":7}"#).unwrap();
        let error = TrainingState::load(&world, &path).unwrap_err();
        let expected = format!("{} has state format 2, this program reads up to 1", path.display());
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.blame(), Blame::User);
    }
}
