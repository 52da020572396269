//! Starts other programs and talks to the person who waits for them.
//!
//! A program runs in the root of the repository, without standard input, and its output goes
//! straight to the terminal: a chore adds nothing between a tool and its reader.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the repository, which is the folder above this crate.
pub(crate) fn root() -> PathBuf {
    // Read when it runs, not when it is compiled: clones that share one build folder may share
    // this binary too, and each must check its own files.
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR");
    let manifest_dir = manifest_dir.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest_dir).parent().expect("xtask sits one folder below the root").to_path_buf()
}

/// A line for the person who waits. It goes to standard error, as all progress does.
#[expect(clippy::print_stderr, reason = "xtask is a terminal program; stderr is its screen")]
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}

/// The cargo that runs us, with `args` separated by spaces.
pub(crate) fn cargo(args: &str) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args.split_whitespace());
    command
}

/// Runs a command to its end; anything but success is an error that names the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = display(command);
    say(&format!("   $ {shown}"));
    let status = command
        .current_dir(root())
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Runs a command to its end and returns what it wrote to standard output.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let shown = display(command);
    let output = command
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed ({})", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` did not print UTF-8"))
}

/// Whether a command can be started and succeeds; its output is of no interest.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The command as a person would type it: the program's file name, then its arguments.
fn display(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut parts = vec![program.to_string_lossy()];
    parts.extend(command.get_args().map(std::ffi::OsStr::to_string_lossy));
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = run(&mut cargo("no-such-command --x")).unwrap_err();
        assert!(error.to_string().contains("cargo no-such-command --x"), "{error}");
    }

    #[test]
    fn captured_output_is_standard_output_only() {
        let version = capture(&mut cargo("--version")).unwrap();
        assert!(version.starts_with("cargo "), "{version}");
        // Whoever asks first whether a command succeeds still gets its output.
        let mut command = cargo("--version");
        assert!(succeeds(&mut command));
        assert_eq!(capture(&mut command).unwrap(), version);
        assert!(!succeeds(&mut Command::new("a-program-that-does-not-exist")));
    }
}
