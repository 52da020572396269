//! `lockstep plan step`: the step program of a rank, proven and printed.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_planner::traffic::programs_at;
use lockstep_platform::World;
use lockstep_schedule::step::{Program, verify};
use serde::Serialize;

/// Print the tasks of a rank's step, as the engine runs them
#[derive(clap::Args)]
#[command(after_help = "\
A line is a task: its number, the queue that it occupies, its action, the buffers that it uses, its
collective call and the tasks of other queues that it waits for. `>` fills a buffer, `<` empties it,
`+` adds to it, `~` changes it in place; other buffers are read. The programs of all ranks are
proven together first.

Examples:
  lockstep plan step --preset tiny                              rank 0 of the default layout
  lockstep plan step --preset tiny --set run.workers=2 --set parallel.zero=3 --rank 1
  lockstep plan step my.toml --json                             JSON")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Rank whose tasks are printed
    #[arg(long, default_value_t = 0)]
    rank: usize,
    /// Step of the run, counted from 0
    #[arg(long, default_value_t = 0)]
    step: u64,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    rank: usize,
    peak_elements: u64,
    tasks: Vec<TaskReport>,
}

#[derive(Serialize)]
struct TaskReport {
    id: u32,
    queue: String,
    task: String,
    after: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<CallReport>,
}

#[derive(Serialize)]
struct CallReport {
    op: String,
    elements: usize,
    element_bytes: u64,
    ranks: Vec<usize>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let recipe = arguments.recipe.resolve(world)?;
    if let Some(setting) = recipe.unmodelled_traffic() {
        let error = format!("{setting} has no step program; try sync.mode = \"all-reduce\"");
        return Err(Failure::user(error));
    }
    let programs = programs_at(&recipe, arguments.step);
    let Some(program) = programs.get(arguments.rank) else {
        let (rank, last) = (arguments.rank, programs.len() - 1);
        return Err(Failure::user(format!("there is no rank {rank}; try 0 to {last}")));
    };
    let proof = verify(&programs).map_err(|error| Failure::user(error.to_string()))?;
    if arguments.json {
        return output::json(&report(program, proof.peak_len[arguments.rank]));
    }
    output::text(&program.to_string())
}

fn report(program: &Program, peak_elements: u64) -> Report {
    let tasks = program.iter().map(|(id, task)| TaskReport {
        id: id.0,
        queue: task.queue.to_string(),
        task: task.op.to_string(),
        after: program.after(id).iter().map(|before| before.0).collect(),
        call: program.call(task).map(|(call, group)| CallReport {
            op: call.op.to_string(),
            elements: call.lengths.count(),
            element_bytes: call.element.0,
            ranks: group.ranks.clone(),
        }),
    });
    Report { rank: program.rank, peak_elements, tasks: tasks.collect() }
}
