//! `lockstep man`: manual pages, one for each command.

use crate::failure::Failure;
use crate::output;
use crate::workers::print_status;
use clap::Command;
use clap_mangen::Man;
use lockstep_platform::World;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Print the manual page, or write one page for every command
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep man | man -l -                            read the page of lockstep
  lockstep man --out ~/.local/share/man/man1         all pages; then man lockstep-train")]
pub(crate) struct Arguments {
    /// Folder for the pages of all commands: lockstep.1, lockstep-train.1 and so on
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, world: &World, command: Command) -> Result<(), Failure> {
    let mut command = command.disable_help_subcommand(true);
    // Fills in usage lines and the full names of commands below commands.
    command.build();
    let Some(folder) = &arguments.out else {
        return output::text(&String::from_utf8_lossy(&render(&command)?));
    };
    world.files().create_dir_all(folder)?;
    let num_pages = write_pages(folder, world, &command)?;
    print_status(&format!("{num_pages} pages in {}\n", folder.display()));
    Ok(())
}

/// Writes the page of a command and of all below it; returns their number.
fn write_pages(folder: &Path, world: &World, command: &Command) -> Result<usize, Failure> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    world.files().write_atomic(&folder.join(format!("{name}.1")), &render(command)?)?;
    let mut num_pages = 1;
    // `help` repeats the others.
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        num_pages += write_pages(folder, world, below)?;
    }
    Ok(num_pages)
}

/// The page in roff.
fn render(command: &Command) -> Result<Vec<u8>, Failure> {
    let version = concat!("lockstep ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(version).manual("Lockstep");
    let mut page = Vec::new();
    let mut write = || {
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if command.has_subcommands() {
            man.render_subcommands_section(&mut page)?;
        }
        let examples = command.get_after_help().map(ToString::to_string);
        page.write_all(render_examples(&examples.unwrap_or_default()).as_bytes())
    };
    write().map_err(|error: io::Error| Failure::bug(format!("the manual page: {error}")))?;
    Ok(page)
}

/// The text after the options as a section whose lines are kept: the library would fill them.
fn render_examples(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let (title, text) = match text.strip_prefix("Examples:\n") {
        Some(examples) => ("EXAMPLES", examples),
        None => ("NOTES", text),
    };
    let escape = |line: &str| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A line that starts so would be a request.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        format!("{guard}{line}\n")
    };
    let lines: String = text.lines().map(escape).collect();
    format!(".SH {title}\n.nf\n{lines}.fi\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines_and_are_no_requests() {
        let text = render_examples("Examples:\n  a --b \\ c\n.d\n'e");
        assert_eq!(text, ".SH EXAMPLES\n.nf\n  a \\-\\-b \\e c\n\\&.d\n\\&'e\n.fi\n");
        assert_eq!(render_examples(""), "");
        assert!(render_examples("More").starts_with(".SH NOTES\n"));
    }
}
