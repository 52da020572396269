//! Memory as a training framework logs it.

use crate::framework::ReportedMemory;
use crate::job::Workload;
use crate::memory::cluster::{StageMemory, largest_stage, of_stage};
use crate::time::cluster::host_runs_ahead;

/// Bytes that the framework of this job logs for its peak.
pub fn reported_memory(workload: &Workload<'_>) -> f64 {
    let job = &workload.job;
    let held = match job.framework.reported_memory {
        ReportedMemory::Allocated => return largest_stage(job).total(),
        ReportedMemory::Reserved => largest_stage(job),
        ReportedMemory::ReservedOnFirstStage => of_stage(job, 0),
    };
    // A host that is slower than its device requests no memory ahead of it.
    let waits = job.layout.pipeline > 1 && !host_runs_ahead(workload);
    let run_ahead = if waits { 0.0 } else { held.run_ahead };
    StageMemory { run_ahead, ..held }.reserved(job.cluster.device.memory_bytes())
}
