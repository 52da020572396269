//! `lockstep data-server`: reads a corpus once and serves batches to workers.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_data::serve::{Event, Server};
use lockstep_platform::World;
use serde::Serialize;
use std::io::Write;

/// Serve the batches of a recipe to workers
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  export LOCKSTEP_SECRET=$(lockstep rendezvous --new-secret)
  lockstep data-server my.toml --listen 0.0.0.0:7777
  lockstep train my.toml --set data.placement=served --set data.server=10.0.0.1:7777

The first line on standard output is the listening address. Workers authenticate with a shared
secret (LOCKSTEP_SECRET, or LOCKSTEP_SECRET_FILE with a file that has it) and need the same recipe
as far as batches depend on it; results are bit-identical to data.placement = shared. Tokens are
sent unencrypted, so use a trusted network. The server runs until it is interrupted.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Address to listen at; port 0 lets the system choose one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7777")]
    listen: String,
    /// No lines on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output once it listens
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Opened {
    listening: String,
    corpus: String,
    fingerprint: String,
    num_tokens: u64,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    world.processes().accept_interrupts();
    let recipe = arguments.recipe.resolve(world)?;
    let server = Server::open(&recipe, world, &arguments.listen)?;
    let corpus = server.corpus();
    let listening = Opened {
        listening: server.addr(),
        corpus: corpus.name().to_owned(),
        fingerprint: corpus.fingerprint(),
        num_tokens: corpus.num_tokens() as u64,
    };
    if arguments.json {
        output::json(&listening)?;
    } else {
        let Opened { listening, corpus, fingerprint, num_tokens } = &listening;
        output::text(&format!(
            "listening on {listening}: {corpus}, {num_tokens} tokens, fingerprint {fingerprint}\n"
        ))?;
    }
    let quiet = arguments.quiet;
    let print = move |event| {
        if !quiet {
            // A closed standard error is not a failure of the command.
            let _ = std::io::stderr().write_all(line(&event).as_bytes());
        }
    };
    Ok(server.run(|| false, print)?)
}

fn line(event: &Event) -> String {
    match event {
        Event::Joined(addr) => format!("{addr} joined\n"),
        Event::Left(addr, num_steps) => format!("{addr} left after {num_steps} steps\n"),
        Event::Refused(addr, reason) => format!("{addr} refused: {reason}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_one_line() {
        let addr = || "10.0.0.2:4000".to_owned();
        assert_eq!(line(&Event::Joined(addr())), "10.0.0.2:4000 joined\n");
        assert_eq!(line(&Event::Left(addr(), 20)), "10.0.0.2:4000 left after 20 steps\n");
        let refused = Event::Refused(addr(), "it has another LOCKSTEP_SECRET".to_owned());
        assert_eq!(line(&refused), "10.0.0.2:4000 refused: it has another LOCKSTEP_SECRET\n");
    }
}
