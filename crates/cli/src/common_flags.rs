//! Flags for the keys that are set most often, each equal to a `--set` of its key.

use crate::failure::Failure;
use crate::recipe_args::RecipeArguments;
use lockstep_config::DeviceChoice;

/// Flags with their keys.
const FLAGS: [(&str, &str); 6] = [
    ("--steps", "train.steps"),
    ("--lr", "optim.lr"),
    ("--batch", "train.batch"),
    ("--workers", "run.workers"),
    ("--device", "run.device"),
    ("--data", "data.source"),
];

/// The flag that sets a key.
pub(crate) fn flag_of(key: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(_, known)| *known == key).map(|(flag, _)| *flag)
}

/// Common settings of a run.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct CommonFlags {
    /// Optimizer steps (train.steps)
    #[arg(long, value_name = "N")]
    steps: Option<String>,
    /// Learning rate (optim.lr)
    #[arg(long, value_name = "RATE")]
    lr: Option<String>,
    /// Sequences per step over all workers (train.batch)
    #[arg(long, value_name = "N")]
    batch: Option<String>,
    /// Number of workers, or a range like '{min=2,max=4}' (run.workers)
    #[arg(long, value_name = "N")]
    workers: Option<String>,
    /// Device of the model: auto, cpu, cuda or cuda:N (run.device)
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// File or folder to train on (data.source)
    #[arg(long, value_name = "PATH")]
    data: Option<String>,
}

impl CommonFlags {
    /// The recipe arguments with these flags as settings. A flag that contradicts a `--set` is
    /// refused.
    pub(crate) fn add_to(&self, recipe: &RecipeArguments) -> Result<RecipeArguments, Failure> {
        // In the order of the flags.
        let Self { steps, lr, batch, workers, device, data } = self;
        let values = [steps, lr, batch, workers, device, data];
        let mut settings = Vec::new();
        for ((flag, key), value) in FLAGS.into_iter().zip(values) {
            let Some(value) = value else { continue };
            for set in recipe.sets() {
                let other = set.split_once('=').filter(|(other, _)| other.trim() == key);
                if let Some((_, other)) = other.filter(|(_, other)| !is_equal(value, other)) {
                    return Err(Failure::user(format!(
                        "{flag} {value} and --set {key}={} are two values of {key}; keep one",
                        other.trim()
                    )));
                }
            }
            settings.push(format!("{key}={value}"));
        }
        Ok(recipe.with(&settings))
    }
}

/// Whether two values of a key are equal: as numbers, or else as text.
fn is_equal(one: &str, other: &str) -> bool {
    let text = |value: &str| value.trim().trim_matches('"').to_owned();
    let (one, other) = (text(one), text(other));
    match (one.parse::<f64>(), other.parse::<f64>()) {
        (Ok(one), Ok(other)) => one.to_bits() == other.to_bits(),
        _ => one == other,
    }
}

/// Reads the value of `--device`.
pub(crate) fn device_choice(text: &str) -> Result<DeviceChoice, String> {
    let refusal = || "not one of auto, cpu, cuda, cuda:N".to_owned();
    DeviceChoice::from_name(text).ok_or_else(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        recipe: RecipeArguments,
        #[command(flatten)]
        flags: CommonFlags,
    }

    fn added(arguments: &[&str]) -> Result<Vec<String>, String> {
        let arguments = Arguments::parse_from([&["train"], arguments].concat());
        let added = arguments.flags.add_to(&arguments.recipe);
        added.map(|recipe| recipe.to_arguments()).map_err(|failure| failure.text().to_owned())
    }

    #[test]
    fn flags_are_settings_of_their_keys() {
        let flags = "--steps 20 --lr 3e-4 --batch 8 --workers 2 --device cuda:1 --data book.txt";
        let flags: Vec<&str> = flags.split(' ').collect();
        let settings = [
            "train.steps=20",
            "optim.lr=3e-4",
            "train.batch=8",
            "run.workers=2",
            "run.device=cuda:1",
            "data.source=book.txt",
        ];
        let expected: Vec<&str> = settings.iter().flat_map(|set| ["--set", set]).collect();
        assert_eq!(added(&flags).unwrap(), expected);
        assert_eq!(added(&[]).unwrap(), [""; 0]);
    }

    #[test]
    fn a_flag_and_a_setting_must_agree() {
        assert!(added(&["--lr", "1e-3", "--set", "optim.lr = 0.001"]).is_ok());
        assert!(added(&["--data", "a.txt", "--set", "data.source=\"a.txt\""]).is_ok());
        assert!(added(&["--steps", "5", "--set", "train.batch=6"]).is_ok());
        assert_eq!(
            added(&["--steps", "20", "--set", "train.steps=30"]).unwrap_err(),
            "--steps 20 and --set train.steps=30 are two values of train.steps; keep one"
        );
    }
}
