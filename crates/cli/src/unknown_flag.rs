//! Errors for flags that a command does not have: the key or the flag for a name that another
//! framework uses.

use crate::common_flags;
use crate::failure::Failure;
use crate::resume_command::quoted;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use lockstep_config::{FlagCounterpart, FlagSetting, flag_counterpart, nearest_flag_counterpart};

/// The error of a command line whose flag has a counterpart; `None` for any other error, and where
/// the command takes no settings.
pub(crate) fn explain(
    error: &clap::Error,
    program: &clap::Command,
    arguments: &[String],
) -> Option<Failure> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = argument.split('=').next().filter(|flag| flag.starts_with("--"))?;
    let (name, command) = command_of(program, arguments);
    if !has_flag(command, "--set") {
        return None;
    }
    let value = value_of(flag, arguments);
    let has_similar = error.get(ContextKind::SuggestedArg).is_some();
    let nearest = || nearest_flag_counterpart(flag, value).filter(|_| !has_similar);
    let counterpart = flag_counterpart(flag, value).or_else(nearest)?;
    let fix = match counterpart {
        FlagCounterpart::Absent { reason, instead } => format!(": {reason}; {instead}"),
        FlagCounterpart::Settings { settings, difference } => {
            let note = match difference {
                "" => String::new(),
                difference => format!(" ({difference})"),
            };
            let settings = settings.iter().map(|setting| written(setting, command));
            format!("{note}; write {}", settings.collect::<Vec<_>>().join(" "))
        }
    };
    Some(Failure::user(format!("{name} has no flag {flag}{fix}")))
}

/// The command that the arguments name, and its name with those of its parents.
fn command_of<'a>(program: &'a clap::Command, arguments: &[String]) -> (String, &'a clap::Command) {
    let (mut name, mut command) = (program.get_name().to_owned(), program);
    for argument in arguments.iter().skip(1) {
        let Some(found) = command.find_subcommand(argument) else { continue };
        name = format!("{name} {}", found.get_name());
        command = found;
    }
    (name, command)
}

/// The value of a flag: after `=`, or the next argument if that is not a flag.
fn value_of<'a>(flag: &str, arguments: &'a [String]) -> Option<&'a str> {
    let index = arguments.iter().position(|argument| {
        argument.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    if let Some((_, value)) = arguments[index].split_once('=') {
        return Some(value);
    }
    let next = arguments.get(index + 1)?;
    let is_value = !next.starts_with('-') || next.parse::<f64>().is_ok();
    is_value.then_some(next)
}

fn has_flag(command: &clap::Command, flag: &str) -> bool {
    command.get_arguments().any(|known| known.get_long() == flag.strip_prefix("--"))
}

/// A setting on the command line: by the key's own flag, where the command has one, or by `--set`.
fn written(setting: &FlagSetting, command: &clap::Command) -> String {
    let FlagSetting { key, value } = setting;
    let value = value.as_deref().unwrap_or("VALUE");
    match common_flags::flag_of(key).filter(|flag| has_flag(command, flag)) {
        Some(flag) => format!("{flag} {}", quoted(value)),
        None => format!("--set {}", quoted(&format!("{key}={value}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_follows_its_flag_or_an_equals_sign() {
        let line = "lockstep train --tp=2 --lr -1 --fp16 --tpx 3";
        let line: Vec<String> = line.split(' ').map(str::to_owned).collect();
        assert_eq!(value_of("--tp", &line), Some("2"));
        assert_eq!(value_of("--lr", &line), Some("-1"));
        assert_eq!(value_of("--fp16", &line), None);
        assert_eq!(value_of("--tpx", &line), Some("3"));
    }
}
