//! `lockstep data-server`: reads a text once and sends workers the batches they ask for.

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

The first line on standard output says where it listens. Workers prove that they know the secret
(LOCKSTEP_SECRET, or LOCKSTEP_SECRET_FILE with a file that holds it) and must have the same recipe
as far as batches depend on it; they then train to the same bits as with data.placement = shared.
Tokens travel as they are, so use a network that you trust. It serves until it is interrupted.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Where to listen; port 0 lets the system choose one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7777")]
    listen: String,
    /// No lines about workers on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output when it listens
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
    let tell = move |event| {
        if !quiet {
            // Nobody is left to tell when standard error is closed.
            let _ = std::io::stderr().write_all(line(&event).as_bytes());
        }
    };
    Ok(server.run(|| false, tell)?)
}

fn line(event: &Event) -> String {
    match event {
        Event::Joined(addr) => format!("{addr} joined\n"),
        Event::Left(addr, num_steps) => format!("{addr} left after {num_steps} steps\n"),
        Event::TurnedAway(addr, reason) => format!("{addr} turned away: {reason}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_is_said_in_a_line_each() {
        let addr = || "10.0.0.2:4000".to_owned();
        assert_eq!(line(&Event::Joined(addr())), "10.0.0.2:4000 joined\n");
        assert_eq!(line(&Event::Left(addr(), 20)), "10.0.0.2:4000 left after 20 steps\n");
        let refused = Event::TurnedAway(addr(), "it has another LOCKSTEP_SECRET".to_owned());
        assert_eq!(line(&refused), "10.0.0.2:4000 turned away: it has another LOCKSTEP_SECRET\n");
    }
}
