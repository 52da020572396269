//! Invalid input exits with 2 and one line per error, and nothing is overwritten.

use crate::process::Folder;

/// Runs a command that must be refused: exit code 2, nothing on standard output, an unchanged
/// folder, and only `error: ` lines on standard error. Returns the lines without the prefix.
#[track_caller]
fn refusals(folder: &Folder, arguments: &[&str]) -> Vec<String> {
    let before = folder.content();
    let finished = folder.run(arguments);
    assert_eq!(finished.code, Some(2), "{arguments:?}: {}", finished.stderr);
    assert_eq!(finished.stdout, "", "{arguments:?}");
    assert!(folder.content() == before, "{arguments:?} changed the folder");
    let lines = finished.stderr.lines().map(|line| line.strip_prefix("error: "));
    let lines: Option<Vec<_>> = lines.map(|line| line.map(str::to_owned)).collect();
    lines.unwrap_or_else(|| panic!("{arguments:?}: not only errors in {}", finished.stderr))
}

/// Runs a command that must be refused with one line that has all of these parts.
#[track_caller]
pub(crate) fn refused(folder: &Folder, arguments: &[&str], parts: &[&str]) {
    let lines = refusals(folder, arguments);
    assert_eq!(lines.len(), 1, "{arguments:?}: {lines:?}");
    for part in parts {
        assert!(lines[0].contains(part), "{arguments:?}: no {part:?} in {:?}", lines[0]);
    }
}

/// Trains the smallest model with these settings.
fn train<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["train", "--preset", "tiny"];
    for set in sets {
        arguments.extend(["--set", set]);
    }
    arguments
}

#[test]
fn an_unknown_key_is_refused_with_the_closest_one() {
    let folder = Folder::new();
    refused(&folder, &train(&["train.stepz=3"]), &["train.stepz = 3", "train.steps?"]);
    folder.write("typo.toml", b"[model]\nwidht = 64\n");
    for command in ["train", "inspect", "config"] {
        refused(&folder, &[command, "typo.toml"], &["typo.toml", "model.widht", "model.width?"]);
    }
}

#[test]
fn a_wrong_type_is_refused_with_a_value_that_works() {
    let folder = Folder::new();
    refused(&folder, &train(&["train.steps=many"]), &["train.steps", "integer", "try"]);
    refused(&folder, &train(&["model.tied=3"]), &["model.tied = 3", "true"]);
    refused(&folder, &train(&["train.steps"]), &["key=value"]);
    folder.write("broken.toml", b"[model\nwidth = 64\n");
    refused(&folder, &["train", "broken.toml"], &["broken.toml", "TOML"]);
}

#[test]
fn heads_that_do_not_divide_the_width_are_refused_with_a_fix() {
    let folder = Folder::new();
    refused(
        &folder,
        &["train", "--preset", "bible-small", "--set", "model.heads=5"],
        &["model.heads = 5 does not divide model.width", "try 1, 2, 3, 4 or 6"],
    );
}

#[test]
fn all_errors_are_reported_together() {
    let folder = Folder::new();
    let sets = ["train.steps=many", "model.widht=3", "model.heads=5", "optim.momentum=0.5"];
    let lines = refusals(&folder, &train(&sets));
    assert_eq!(lines.len(), sets.len(), "{lines:?}");
    for set in sets {
        let (key, _) = set.split_once('=').expect("key=value");
        assert!(lines.iter().any(|line| line.starts_with(key)), "{key} in {lines:?}");
    }
}

#[test]
fn an_unusable_corpus_is_refused_by_name() {
    let folder = Folder::new();
    folder.write("empty.txt", b"");
    folder.write("latin.txt", b"caf\xe9 au lait");
    folder.write("short.txt", b"a text of thirty-one characters");
    folder.write("bare/.hidden", b"nothing to see");
    let cases: [(&str, &[&str]); 6] = [
        ("missing.txt", &["missing.txt", "does not exist"]),
        ("empty.txt", &["empty.txt is empty"]),
        ("latin.txt", &["latin.txt is not UTF-8", "byte 3"]),
        ("short.txt", &["short.txt is too short", "model.context = 32"]),
        ("bare", &["bare holds no file with text"]),
        ("short.txt/inside", &["short.txt/inside"]),
    ];
    for (source, parts) in cases {
        let set = format!("data.source={source}");
        refused(&folder, &train(&[&set]), parts);
        refused(&folder, &["bench", "train", "--preset", "tiny", "--set", &set], parts);
    }
    refused(&folder, &train(&["model.context=1000000"]), &["too short", "try model.context ="]);
}

#[test]
fn an_unreadable_recipe_is_refused_by_name() {
    let folder = Folder::new();
    folder.write("latin.toml", b"# caf\xe9\n");
    for command in ["train", "inspect", "config"] {
        refused(&folder, &[command, "missing.toml"], &["missing.toml", "no such file"]);
        refused(&folder, &[command, "latin.toml"], &["latin.toml", "UTF-8"]);
        refused(&folder, &[command, "--preset", "huge"], &["\"huge\" is not known", "tiny"]);
    }
}

#[test]
fn a_folder_with_files_is_never_overwritten() {
    let folder = Folder::new();
    folder.write("precious/notes.txt", b"do not lose me");
    for dir in ["precious", "precious/notes.txt"] {
        let set = format!("run.dir={dir}");
        refused(&folder, &train(&[&set]), &[dir, "not a new or empty folder"]);
    }
}

#[test]
fn weights_that_are_not_numbers_are_refused_by_name() {
    let folder = Folder::new();
    let settings = ["train.steps=2", "run.dir=run"];
    folder.succeed(&[&train(&settings)[..], &["--stop-after", "1"]].concat());
    let resume = |dir: &'static str| {
        [&train(&["train.steps=2", "run.dir=next"])[..], &["--resume", dir]].concat()
    };
    for (file, value, word) in [
        ("run/model.safetensors", f32::NAN, "NaN"),
        ("run/model.safetensors", f32::INFINITY, "inf"),
        ("run/optimizer.safetensors", f32::NAN, "NaN"),
    ] {
        let good = folder.read(file);
        let mut bad = good.clone();
        let last = bad.last_chunk_mut().expect("a file of weights has weights");
        *last = value.to_le_bytes();
        folder.write(file, &bad);
        let parts = [file, "tensor", "holds", word];
        refused(&folder, &resume("run"), &parts);
        if file.contains("model") {
            refused(&folder, &["generate", "run"], &parts);
        }
        folder.write(file, &good);
    }
    // The restored files work, and the refused attempts left nothing behind.
    folder.succeed(&resume("run"));
    folder.succeed(&["generate", "run", "--tokens", "1"]);
}

#[test]
fn a_missing_or_different_run_is_refused() {
    let folder = Folder::new();
    refused(&folder, &["generate"], &["no finished run", "lockstep train"]);
    refused(&folder, &["generate", "nowhere"], &["nowhere does not exist"]);
    let resume = |sets: &[&'static str], dir| [&train(sets)[..], &["--resume", dir]].concat();
    refused(&folder, &resume(&[], "nowhere"), &["nowhere does not exist"]);
    folder.succeed(&train(&["train.steps=1", "run.dir=run"]));
    let other = resume(&["train.steps=1", "train.seed=2", "run.dir=next"], "run");
    let parts = ["train.seed = 1 there, train.seed = 2 here", "only run.*, parallel.*"];
    refused(&folder, &other, &parts);
    folder.succeed(&train(&["train.steps=1", "run.dir=bare", "run.save_optimizer=false"]));
    let bare = resume(&["train.steps=1", "run.dir=next"], "bare");
    refused(&folder, &bare, &["bare"]);
}

#[test]
fn invalid_options_are_refused() {
    let folder = Folder::new();
    refused(&folder, &["bench", "train", "--steps", "0"], &["--steps 0"]);
    let by_operation = ["bench", "train", "--by-operation", "--set", "run.device=cpu"];
    refused(&folder, &by_operation, &["need an accelerator", "run.device=cuda"]);
    refused(&folder, &["generate", "--temperature", "-1"], &["--temperature -1"]);
    refused(&folder, &["generate", "--top-p", "0"], &["--top-p 0"]);
    refused(&folder, &["generate", "--top-p", "-0.5"], &["--top-p -0.5"]);
    for arguments in [&["fly"][..], &["train", "--fly"], &["train", "--set"], &[]] {
        let finished = folder.run(arguments);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{arguments:?}");
    }
}
