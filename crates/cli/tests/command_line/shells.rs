//! Completion scripts parse in their shells, and manual pages are well-formed.

use crate::process::Folder;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a checker on a file; `None` if it is not installed.
fn check(program: &str, arguments: &[&str], file: &Path) -> Option<Result<(), String>> {
    let mut command = Command::new(program);
    let output = command.args(arguments).arg(file).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    Some(if output.status.success() && text.trim().is_empty() { Ok(()) } else { Err(text) })
}

#[test]
fn completion_scripts_parse_in_their_shells() {
    let folder = Folder::new();
    let parser = "$errors = $null; [void][System.Management.Automation.Language.Parser]::ParseFile(\
                  (Resolve-Path $args[0]), [ref]$null, [ref]$errors); $errors; exit $errors.Count";
    for (shell, program, arguments) in [
        ("bash", "bash", &["-n"][..]),
        ("zsh", "zsh", &["-n"]),
        ("fish", "fish", &["-n"]),
        ("powershell", "pwsh", &["-NoProfile", "-Command", parser]),
        ("elvish", "elvish", &["-compileonly"]),
    ] {
        let script = folder.succeed(&["completions", shell]).stdout;
        let has_values = ["bash", "zsh", "fish"].contains(&shell);
        let values = if has_values { &["bible-small", "train.steps="][..] } else { &[] };
        for known in ["train", "completions", "resume"].iter().chain(values) {
            assert!(script.contains(known), "{shell} knows {known}");
        }
        for (open, close) in [('{', '}'), ('(', ')')] {
            // Cases of bash have no opening parenthesis.
            let count = |bracket: char| script.chars().filter(|c| *c == bracket).count();
            let is_balanced = count(open) == count(close) || (shell == "bash" && open == '(');
            assert!(is_balanced, "{shell}: {open} and {close}");
        }
        let name = format!("lockstep.{shell}");
        folder.write(&name, script.as_bytes());
        if let Some(parsed) = check(program, arguments, &folder.path().join(&name)) {
            assert_eq!(parsed, Ok(()), "{shell}");
        } else {
            assert_ne!(shell, "bash", "bash is always there");
            println!("skipped: {program} is not installed; the script is not parsed");
        }
    }
}

#[test]
fn bash_completes_commands_flags_presets_and_keys() {
    let folder = Folder::new();
    let script = folder.succeed(&["completions", "bash"]).stdout;
    folder.write("lockstep.bash", script.as_bytes());
    // The function of the script, called as bash calls it for the last word.
    let complete = |line: &[&str]| {
        let list = line.iter().map(|part| format!("'{part}'")).collect::<Vec<_>>().join(" ");
        let (last, before) = (line[line.len() - 1], line[line.len() - 2]);
        let index = line.len() - 1;
        let program = format!(
            "source ./lockstep.bash; COMP_WORDS=({list}); COMP_CWORD={index}; \
             _lockstep lockstep '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &program]).current_dir(folder.path());
        let output = bash.output().expect("bash is always there");
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    };
    assert_eq!(complete(&["lockstep", "compl"]), "completions");
    assert_eq!(complete(&["lockstep", "train", "--resu"]), "--resume");
    assert_eq!(complete(&["lockstep", "train", "--preset", "tin"]), "tiny");
    assert_eq!(complete(&["lockstep", "train", "--set", "train.step"]), "train.steps=");
}

#[test]
fn manual_pages_of_all_commands_are_well_formed() {
    let folder = Folder::new();
    folder.succeed(&["man", "--out", "man1"]);
    let pages: Vec<_> = folder.content().into_iter().filter(|(path, _)| path.is_file()).collect();
    let names: Vec<String> = pages
        .iter()
        .map(|(path, _)| path.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    for expected in ["lockstep.1", "lockstep-train.1", "lockstep-bench-comm.1", "lockstep-runs.1"] {
        assert!(names.iter().any(|name| name == expected), "{expected}: {names:?}");
    }
    assert!(pages.len() > 20, "{names:?}");
    let main = folder.succeed(&["man"]).stdout;
    assert_eq!(main.as_bytes(), folder.read("man1/lockstep.1"), "the main page is printed");
    for ((path, page), name) in pages.iter().zip(&names) {
        // Hyphens may be escaped.
        let text = std::str::from_utf8(page).expect("UTF-8").replace("\\-", "-");
        let title = name.trim_end_matches(".1");
        assert!(text.contains(&format!(".TH {title} 1")), "{name} has a title: {text}");
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
            assert!(text.contains(section), "{name} has {section}");
        }
        let count = |request: &str| text.lines().filter(|line| *line == request).count();
        assert_eq!(count(".nf"), count(".fi"), "{name} ends its examples");
        if let Some(found) = check("mandoc", &["-T", "lint", "-W", "error"], path) {
            assert_eq!(found, Ok(()), "{name}");
        } else if name == "lockstep.1" {
            println!("skipped: mandoc is not installed; the pages are not checked by it");
        }
    }
    let (path, _) = pages.iter().find(|(path, _)| path.ends_with("lockstep-train.1")).expect("it");
    let mut man = Command::new("man");
    man.arg("--warnings").arg("-l").arg(path).env("MANPAGER", "cat").env("MANWIDTH", "80");
    match man.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            let warnings = String::from_utf8_lossy(&output.stderr);
            assert_eq!(warnings, "", "man renders the page without warnings");
            let page = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(page.contains("--resume") && page.contains("EXAMPLES"), "{page}");
            assert!(
                page.contains("         lockstep train --preset tiny"),
                "lines are kept: {page}"
            );
        }
        _ => println!("skipped: man cannot show a file here"),
    }
}
