//! `lockstep lab claims`: common claims about distributed training, checked by simulation.

use crate::failure::Failure;
use crate::output;
use lockstep_lab::claims::check;
use std::fmt::Write;

/// Check common claims: true, false or conditional, with the evidence
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep lab claims
  lockstep lab claims --json")]
pub(super) struct Arguments {
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let claims = check()?;
    if arguments.json {
        return output::json(&claims);
    }
    let mut text = String::new();
    for claim in &claims {
        let verdict = claim.verdict.to_string();
        let _ = writeln!(text, "{verdict:<10}  {}", claim.claim);
        let _ = writeln!(text, "{:<10}  {} ({})", "", claim.evidence, claim.experiment);
    }
    output::text(&text)
}
