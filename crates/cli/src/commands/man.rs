//! `lockstep man`: manual pages, one for each command.

use crate::failure::Failure;
use crate::output;
use crate::workers::print_status;
use clap::Command;
use clap_mangen::Man;
use lockstep_platform::World;
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

pub(crate) fn run(
    arguments: &Arguments,
    world: &World,
    mut command: Command,
) -> Result<(), Failure> {
    // Fills in usage lines and the names of commands below commands.
    command.build();
    let Some(folder) = &arguments.out else {
        return output::text(&String::from_utf8_lossy(&render(command)?));
    };
    world.files().create_dir_all(folder)?;
    let num_pages = write_pages(folder, world, command)?;
    print_status(&format!("{num_pages} pages in {}\n", folder.display()));
    Ok(())
}

/// Writes the page of a command and of all below it; returns their number.
fn write_pages(folder: &Path, world: &World, command: Command) -> Result<usize, Failure> {
    let below: Vec<Command> = command.get_subcommands().cloned().collect();
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let page = render(command.name(name.clone()))?;
    world.files().write_atomic(&folder.join(format!("{name}.1")), &page)?;
    let mut num_pages = 1;
    // `help` repeats the others.
    for command in below.into_iter().filter(|command| command.get_name() != "help") {
        num_pages += write_pages(folder, world, command)?;
    }
    Ok(num_pages)
}

/// The page in roff.
fn render(command: Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    let written = Man::new(command).manual("Lockstep").render(&mut page);
    written.map_err(|error| Failure::bug(format!("the manual page: {error}")))?;
    Ok(page)
}
