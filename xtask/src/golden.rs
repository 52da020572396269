//! The golden files: what PyTorch computes for two small models, kept beside the harness.
//!
//! They are made by scripts that need `torch` and `numpy`, which the project itself does not;
//! so this chore asks for a Python that has them and otherwise says how to prepare one.

use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;

const SCRIPTS: [&str; 3] = [
    "scripts/golden/make_golden.py",
    "scripts/golden/make_optimizers.py",
    "scripts/golden/make_bf16.py",
];

const ADVICE: &str = "\
The golden files in crates/harness/golden are written by make_golden.py, make_optimizers.py and
make_bf16.py in scripts/golden. They need a Python with torch and numpy (the CPU build is enough):

  python3 -m venv ../golden-venv
  ../golden-venv/bin/pip install torch numpy
  cargo xtask golden --python ../golden-venv/bin/python           # write the files again
  cargo xtask golden --python ../golden-venv/bin/python --check   # compare, write nothing

A change of a golden file must be explained in the change that makes it.";

#[derive(Debug, PartialEq)]
struct Options<'a> {
    python: Option<&'a str>,
    check: bool,
}

/// Runs the scripts with the given Python, or prints how to get one that can.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let options = parse(args)?;
    let Some(python) = options.python else {
        shell::say(ADVICE);
        return Ok(());
    };
    if !shell::succeeds(Command::new(python).args(["-c", "import torch, numpy"])) {
        bail!("`{python}` cannot import torch and numpy\n\n{ADVICE}");
    }
    for script in SCRIPTS {
        let mut command = Command::new(python);
        command.arg(script);
        if options.check {
            command.arg("--check");
        }
        shell::run(&mut command)?;
    }
    Ok(())
}

fn parse<'a>(args: &[&'a str]) -> Result<Options<'a>> {
    match args {
        [] => Ok(Options { python: None, check: false }),
        ["--python", path] => Ok(Options { python: Some(path), check: false }),
        ["--python", path, "--check"] | ["--check", "--python", path] => {
            Ok(Options { python: Some(path), check: true })
        }
        _ => bail!("cannot read `{}`; usage: golden [--python PATH [--check]]", args.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_in_either_order() {
        let both = Options { python: Some("py"), check: true };
        assert_eq!(parse(&["--python", "py", "--check"]).unwrap(), both);
        assert_eq!(parse(&["--check", "--python", "py"]).unwrap(), both);
        assert_eq!(parse(&[]).unwrap(), Options { python: None, check: false });
    }

    #[test]
    fn a_check_without_a_python_is_refused() {
        assert!(parse(&["--check"]).is_err());
        assert!(parse(&["--python"]).is_err());
    }
}
