//! Commands that continue a run, as text for a shell.
//!
//! A run folder records the recipe of its run, so the command that resumes it names the folder and
//! no key of the recipe.

use lockstep_config::{Elastic, Recipe};
use lockstep_platform::World;
use lockstep_trainer::RunFolder;
use lockstep_trainer::run_folder::load_recipe;
use std::path::{Path, PathBuf};

/// Options of `lockstep train` that the run folder records, or that name a run to start from.
const RECORDED_OPTIONS: [&str; 11] = [
    "--preset",
    "--set",
    "--steps",
    "--lr",
    "--batch",
    "--workers",
    "--device",
    "--data",
    "--from",
    "--warm-up",
    "--resume",
];

/// Other options of `lockstep train` with a value.
const OTHER_OPTIONS: [&str; 6] =
    ["--stop-after", "--listen", "--join", "--rank", "--world-size", "--master"];

/// The command `arguments` of a run, with its program, changed to resume the run in the folder
/// `run`.
pub(crate) fn resume_command(
    arguments: impl IntoIterator<Item = String>,
    run: &Path,
    recipe: &Recipe,
) -> String {
    let mut arguments = arguments.into_iter();
    // The program and its command.
    let mut kept: Vec<String> = arguments.by_ref().take(2).collect();
    while let Some(argument) = arguments.next() {
        // What follows `--`, and what is no option, names the recipe.
        if argument == "--" {
            break;
        }
        if !argument.starts_with("--") {
            continue;
        }
        let (name, has_value) = match argument.split_once('=') {
            Some((name, _)) => (name, true),
            None => (argument.as_str(), false),
        };
        let is_recorded = RECORDED_OPTIONS.contains(&name);
        let takes_next = !has_value && (is_recorded || OTHER_OPTIONS.contains(&name));
        let value = if takes_next { arguments.next() } else { None };
        if !is_recorded {
            kept.push(argument);
            kept.extend(value);
        }
    }
    kept.extend(["--resume".to_owned(), run.display().to_string()]);
    // An attempt records its own number of workers.
    if let Some(Elastic { min, max }) = recipe.run.elastic {
        kept.extend(set(&format!("run.workers={{min={min},max={max}}}")));
    }
    joined(&kept)
}

/// The command that starts a run without checkpoints again, by its recorded recipe.
pub(crate) fn restart_command(program: &str, run: &Path, world: &World) -> Option<String> {
    let folder = RunFolder::started(run, world).ok()?;
    let recipe = load_recipe(&folder, world).ok()?;
    let file = folder.recipe().display().to_string();
    let mut command = vec![program.to_owned(), "train".to_owned(), file];
    if !recipe.run.dir.is_empty() {
        let dir = next_dir(&recipe.run.dir, world);
        command.extend(set(&format!("run.dir={}", dir.display())));
    }
    Some(joined(&command))
}

fn set(setting: &str) -> [String; 2] {
    ["--set".to_owned(), setting.to_owned()]
}

fn joined(arguments: &[String]) -> String {
    arguments.iter().map(|argument| quoted(argument)).collect::<Vec<_>>().join(" ")
}

/// A free folder for the run that resumes one whose recipe names its folder: `dir-2`, `dir-3` ….
pub(crate) fn next_dir(dir: &str, world: &World) -> PathBuf {
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| (2..1000).contains(number));
    let (base, last) = match dir.rsplit_once('-') {
        Some((base, text)) if !base.is_empty() => match number(text) {
            Some(number) => (base, number),
            None => (dir, 1),
        },
        _ => (dir, 1),
    };
    let candidates = (last + 1..).map(|number| PathBuf::from(format!("{base}-{number}")));
    let mut free = candidates.filter(|path| world.files().metadata(path).is_none());
    free.next().expect("some number is free")
}

/// The text in single quotes where a shell would change it.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args as _;
    use lockstep_platform::ScratchDir;

    fn resumed(arguments: &[&str]) -> String {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        resume_command(arguments, Path::new("runs/0001"), &Recipe::default())
    }

    #[test]
    fn the_recipe_is_dropped_and_other_options_are_kept() {
        for recipe in [
            &[][..],
            &["my.toml", "--set", "train.steps=9"],
            &["--preset=tiny", "--steps", "9", "--lr=1e-3", "--batch", "8", "--workers", "2"],
            &["--device", "cpu", "--data", "book.txt", "--from", "a b", "--warm-up=5"],
            &["--resume", "runs/0000"],
            &["--resume=runs/0000", "--", "--my.toml"],
        ] {
            assert_eq!(
                resumed(&[&["lockstep", "train"], recipe].concat()),
                "lockstep train --resume runs/0001",
                "{recipe:?}"
            );
        }
        let train = ["lockstep", "train", "--quiet", "my.toml", "--stop-after", "9", "--json"];
        assert_eq!(
            resumed(&[&train[..], &["--listen=a:1", "--set=a=b", "--listen", "b:2"]].concat()),
            "lockstep train --quiet --stop-after 9 --json --listen=a:1 --listen b:2 \
             --resume runs/0001"
        );
    }

    #[test]
    fn an_elastic_run_keeps_its_range() {
        let mut recipe = Recipe::default();
        recipe.run.elastic = Some(Elastic { min: 1, max: 2 });
        let train = ["lockstep", "train"].map(str::to_owned);
        assert_eq!(
            resume_command(train, Path::new("runs/0001"), &recipe),
            "lockstep train --resume runs/0001 --set 'run.workers={min=1,max=2}'"
        );
    }

    /// A new option with a value must be dropped or kept together with its value. A value that
    /// only follows an equals sign is a part of its argument, which is kept.
    #[test]
    fn every_option_with_a_value_is_known() {
        let train = crate::commands::train::Arguments::augment_args(clap::Command::new("train"));
        let with_value = train.get_arguments().filter(|argument| {
            let is_apart = !argument.is_require_equals_set();
            argument.get_action().takes_values() && argument.get_long().is_some() && is_apart
        });
        let mut found: Vec<String> = with_value
            .filter_map(|argument| argument.get_long().map(|name| format!("--{name}")))
            .collect();
        found.sort();
        let mut known: Vec<&str> = [&RECORDED_OPTIONS[..], &OTHER_OPTIONS].concat();
        known.sort_unstable();
        assert_eq!(found, known);
    }

    #[test]
    fn text_that_a_shell_would_change_is_quoted() {
        assert_eq!(
            resumed(&["./lock step", "train", "--quiet"]),
            "'./lock step' train --quiet --resume runs/0001"
        );
        assert_eq!(quoted("it's $1"), r"'it'\''s $1'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_restart_uses_the_recorded_recipe_and_a_free_folder() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "restart-command").unwrap();
        let run = scratch.path().join("run");
        let (dir, path) = (run.display().to_string(), run.join("recipe.toml"));
        assert_eq!(restart_command("lockstep", &run, &world), None);
        world.files().create_dir_all(&run).unwrap();
        let mut recipe = Recipe::default();
        world.files().write_atomic(&path, recipe.to_toml().as_bytes()).unwrap();
        let expected = format!("lockstep train {dir}/recipe.toml");
        assert_eq!(restart_command("lockstep", &run, &world).unwrap(), expected);
        recipe.run.dir.clone_from(&dir);
        world.files().write_atomic(&path, recipe.to_toml().as_bytes()).unwrap();
        assert_eq!(
            restart_command("lockstep", &run, &world).unwrap(),
            format!("{expected} --set run.dir={dir}-2")
        );
    }

    #[test]
    fn the_next_folder_is_free() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "next-dir").unwrap();
        let dir = scratch.path().join("run").display().to_string();
        assert_eq!(next_dir(&dir, &world), PathBuf::from(format!("{dir}-2")));
        world.files().create_dir_all(&PathBuf::from(format!("{dir}-2"))).unwrap();
        assert_eq!(next_dir(&dir, &world), PathBuf::from(format!("{dir}-3")));
        assert_eq!(next_dir(&format!("{dir}-2"), &world), PathBuf::from(format!("{dir}-3")));
        assert_eq!(next_dir(&format!("{dir}-x"), &world), PathBuf::from(format!("{dir}-x-2")));
    }
}
