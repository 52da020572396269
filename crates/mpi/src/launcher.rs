//! Rank and size of a process that an MPI launcher started.

use lockstep_platform::World;

/// A launcher with the environment variables in which it tells ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's Hydra, Intel MPI, and `srun --mpi=pmi2`.
    Pmi,
    /// MVAPICH2.
    Mvapich,
    /// PMIx below `srun`, which tells the size; Open MPI's launcher tells both by itself.
    Pmix,
}

impl Launcher {
    const ALL: [Self; 4] = [Self::OpenMpi, Self::Mvapich, Self::Pmi, Self::Pmix];

    /// Name for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI's mpirun",
            Self::Pmi => "a launcher with PMI (MPICH's mpirun)",
            Self::Mvapich => "MVAPICH's mpirun",
            Self::Pmix => "a launcher with PMIx (srun --mpi=pmix)",
        }
    }

    const fn variables(self) -> [&'static str; 2] {
        match self {
            Self::OpenMpi => ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
            Self::Pmi => ["PMI_RANK", "PMI_SIZE"],
            Self::Mvapich => ["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"],
            Self::Pmix => ["PMIX_RANK", "SLURM_STEP_NUM_TASKS"],
        }
    }
}

/// Place of a process among those that a launcher started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launched {
    /// The launcher.
    pub launcher: Launcher,
    /// Rank of this process.
    pub rank: usize,
    /// Number of processes.
    pub num_ranks: usize,
}

/// How an MPI launcher started this process; `None` if none did.
pub fn launched(world: &World) -> Option<Launched> {
    detect(|name| world.host().env(name))
}

/// As [`launched`], for any source of variables.
pub fn detect(get: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    Launcher::ALL.into_iter().find_map(|launcher| {
        let [rank, num_ranks] = launcher.variables().map(|name| get(name)?.trim().parse().ok());
        let (rank, num_ranks): (usize, usize) = (rank?, num_ranks?);
        (rank < num_ranks).then_some(Launched { launcher, rank, num_ranks })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Launched> {
        detect(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_launcher_is_recognised_by_its_variables() {
        let open_mpi = of(&[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")]);
        let expected = Launched { launcher: Launcher::OpenMpi, rank: 2, num_ranks: 4 };
        assert_eq!(open_mpi, Some(expected));
        let pmi = of(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]).expect("a launcher");
        assert_eq!(pmi.launcher, Launcher::Pmi);
        let pmix = of(&[("PMIX_RANK", "1"), ("SLURM_STEP_NUM_TASKS", "2")]).expect("a launcher");
        assert_eq!((pmix.launcher, pmix.rank, pmix.num_ranks), (Launcher::Pmix, 1, 2));
    }

    #[test]
    fn half_or_wrong_variables_are_no_launcher() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("PMI_RANK", "0")]), None);
        assert_eq!(of(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]), None);
        assert_eq!(of(&[("PMI_RANK", "x"), ("PMI_SIZE", "4")]), None);
    }
}
