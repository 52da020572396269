//! The command that resumes an interrupted run, as text for a shell.

use lockstep_platform::World;
use std::path::{Path, PathBuf};

/// The command `arguments` of a run, with its program, changed to resume the run in the folder
/// `run`. A new run folder overrides the one that the run has used.
pub(crate) fn resume_command(
    arguments: impl IntoIterator<Item = String>,
    run: &Path,
    new_dir: Option<&Path>,
) -> String {
    let mut kept = Vec::new();
    // Arguments after `--` are no options.
    let mut rest = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            rest = [argument].into_iter().chain(arguments).collect();
            break;
        }
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        if !["--resume", "--from", "--warm-up"].contains(&name) {
            kept.push(argument);
            continue;
        }
        let value = value.or_else(|| arguments.next()).unwrap_or_default();
        // --from is no option of a run that resumes, but its settings are part of the recipe.
        match name {
            "--from" => {
                kept.extend(set(&format!("model.from={value}")));
                kept.extend(set("model.partial=true"));
            }
            "--warm-up" => kept.extend(set(&format!("optim.warmup_steps={value}"))),
            _ => {}
        }
    }
    kept.extend(["--resume".to_owned(), run.display().to_string()]);
    kept.extend(new_dir.into_iter().flat_map(|dir| set(&format!("run.dir={}", dir.display()))));
    kept.extend(rest);
    kept.iter().map(|argument| quoted(argument)).collect::<Vec<_>>().join(" ")
}

fn set(setting: &str) -> [String; 2] {
    ["--set".to_owned(), setting.to_owned()]
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
    use lockstep_platform::ScratchDir;

    fn resumed(arguments: &[&str], new_dir: Option<&str>) -> String {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        resume_command(arguments, Path::new("runs/0001"), new_dir.map(Path::new))
    }

    #[test]
    fn the_arguments_are_kept_and_an_earlier_resume_is_replaced() {
        let train = ["lockstep", "train", "my.toml", "--set", "train.steps=9"];
        let expected = "lockstep train my.toml --set train.steps=9 --resume runs/0001";
        assert_eq!(resumed(&train, None), expected);
        let repeated = [&train[..], &["--resume", "runs/0000"]].concat();
        assert_eq!(resumed(&repeated, None), expected);
        let repeated = [&train[..3], &["--resume=runs/0000"], &train[3..]].concat();
        assert_eq!(resumed(&repeated, None), expected);
        assert_eq!(
            resumed(&train, Some("run-2")),
            format!("{expected} --set run.dir=run-2"),
            "a folder that is taken would be refused"
        );
    }

    #[test]
    fn options_that_exclude_resume_become_settings() {
        assert_eq!(
            resumed(&["lockstep", "train", "--from", "a b", "--warm-up=5"], None),
            "lockstep train --set 'model.from=a b' --set model.partial=true --set \
             optim.warmup_steps=5 --resume runs/0001"
        );
        assert_eq!(
            resumed(&["lockstep", "train", "--", "--from"], None),
            "lockstep train --resume runs/0001 -- --from"
        );
    }

    #[test]
    fn text_that_a_shell_would_change_is_quoted() {
        assert_eq!(
            resumed(&["./lock step", "train", "--set", "run.workers={min=1,max=2}"], None),
            "'./lock step' train --set 'run.workers={min=1,max=2}' --resume runs/0001"
        );
        assert_eq!(quoted("it's $1"), r"'it'\''s $1'");
        assert_eq!(quoted(""), "''");
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
