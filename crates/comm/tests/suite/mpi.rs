//! Processes of an MPI launcher, whose data moves through MPI.
//!
//! The test binary starts itself again under every `mpirun` that is installed: [`a_rank_of_mpirun`]
//! is a test that does nothing unless the environment gives it a task.

use std::process::Command;

use lockstep_cluster::mpi::join_mpi_worker;
use lockstep_config::{Sources, resolve};
use lockstep_mpi::launched;
use lockstep_platform::real;

use crate::common::{OPTIONS, run_checks};

const TASK: &str = "LOCKSTEP_TEST_MPI";

#[test]
fn a_rank_of_mpirun() {
    let world = real();
    if world.host().env(TASK).is_none() {
        return;
    }
    let launched = launched(&world).expect("mpirun sets its variables");
    let workers = format!("run.workers={}", launched.num_ranks);
    let sets = ["run.transport=mpi", &workers].map(str::to_owned).into();
    let preset = Some("tiny".to_owned());
    let recipe = resolve(&Sources { sets, preset, ..Sources::default() }).expect("a sound recipe");
    let log = |line: &str| println!("{line}");
    let member = join_mpi_worker(&recipe, &world, &launched, OPTIONS.arena_bytes, log);
    let member = member.expect("all ranks join");
    assert_eq!(member.comm.transport(), "mpi");
    run_checks(&member.comm);
    println!("passed as {:?}", member.comm.rank());
}

#[test]
fn groups_over_mpi_pass_every_check() {
    for family in ["openmpi", "mpich"] {
        let [launcher, compiler] = ["mpirun", "mpicc"].map(|program| format!("{program}.{family}"));
        let version = |program: &str| Command::new(program).arg("--version").output();
        if version(&launcher).is_err() || version(&compiler).is_err() {
            println!("skipped: {launcher} or {compiler} is not installed");
            continue;
        }
        for num_ranks in [2, 3] {
            let own = std::env::current_exe().expect("this file");
            let mut command = Command::new(&launcher);
            command.args(["-n", &num_ranks.to_string()]).arg(own);
            command.args(["--exact", "mpi::a_rank_of_mpirun", "--nocapture"]);
            command.env(TASK, "check").env("MPICC", &compiler);
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
            let output = command.output().expect("the launcher runs");
            let stdout = String::from_utf8_lossy(&output.stdout);
            let num_passed = stdout.matches("passed as").count();
            assert_eq!(num_passed, num_ranks, "{launcher}: {output:?}");
            assert!(output.status.success(), "{launcher}: {output:?}");
        }
    }
}
