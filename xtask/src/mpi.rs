//! Tests under Open MPI and MPICH, which CI installs where it can.
//!
//! They are ordinary tests that skip an MPI that is not there. This step makes sure that both are,
//! so that none of them is skipped without a word.

use anyhow::Result;

use crate::{debian, shell};

/// Launchers and compilers of both families, as Debian names them.
const PROGRAMS: [&str; 4] = ["mpirun.openmpi", "mpicc.openmpi", "mpirun.mpich", "mpicc.mpich"];

const PACKAGES: [&str; 4] = ["openmpi-bin", "libopenmpi-dev", "mpich", "libmpich-dev"];

/// The environment variable with which the tests fail where an MPI is absent.
const SWITCH: &str = "LOCKSTEP_MPI";

/// Runs the tests, if both families are here or can be installed.
pub(crate) fn run() -> Result<()> {
    let is_required = std::env::var_os(SWITCH).is_some_and(|value| value == "1");
    if !debian::absent(&PROGRAMS).is_empty() && std::env::var_os("CI").is_some() {
        debian::install(&PACKAGES);
    }
    let absent = debian::absent(&PROGRAMS);
    if !absent.is_empty() && !is_required {
        let names = absent.join(", ");
        shell::say(&format!("   left out: {names} cannot be started; {SWITCH}=1 insists"));
        return Ok(());
    }
    // The test binaries of the step `test`, so that nothing is built twice.
    let tests = "test --workspace --test suite --test command_line mpi::";
    shell::run(shell::cargo(tests).env(SWITCH, "1"))
}
