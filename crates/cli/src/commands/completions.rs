//! `lockstep completions`: completion scripts for shells.
//!
//! The scripts are static: they know every command and flag. Those of bash, zsh and fish also know
//! the names of presets after `--preset` and the keys of a recipe after `--set`.

use crate::failure::Failure;
use crate::output;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::Shell;
use lockstep_config::{describe_keys, presets};

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep completions bash > ~/.local/share/bash-completion/completions/lockstep
  lockstep completions zsh > ~/.zfunc/_lockstep         with fpath+=~/.zfunc before compinit
  lockstep completions fish > ~/.config/fish/completions/lockstep.fish
  lockstep completions powershell | Out-String | Invoke-Expression
  lockstep completions elvish >> ~/.config/elvish/rc.elv

The script completes commands and flags; those of bash, zsh and fish also the presets of --preset
and the keys of --set.")]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments, command: Command) -> Result<(), Failure> {
    let mut command = with_values(command);
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

/// The command and all below it, with the values that the parser itself does not check: the recipe
/// reports a wrong one with what is near.
fn with_values(command: Command) -> Command {
    let values = |arg: Arg| {
        let names: Vec<String> = match arg.get_long() {
            Some("preset") => presets().iter().map(|(name, _)| (*name).to_owned()).collect(),
            Some("set") => describe_keys().iter().map(|key| format!("{}=", key.name)).collect(),
            _ => return arg,
        };
        arg.value_parser(PossibleValuesParser::new(names))
    };
    let names: Vec<String> =
        command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command = command.mut_args(values);
    names.iter().fold(command, |command, name| command.mut_subcommand(name, with_values))
}
