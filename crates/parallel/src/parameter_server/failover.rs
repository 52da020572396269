//! Servers of a shard as a worker sees them: primary, backups and failover.

use lockstep_comm::CommError;

/// Servers of one shard, the primary first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShardServers {
    alive: Vec<usize>,
}

/// A lost server and its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostServer {
    /// Rank of the lost server.
    pub rank: usize,
    /// Rank of the server that holds its shard now.
    pub successor: usize,
}

impl ShardServers {
    /// The server at `first`, and its backups at multiples of `distance` behind it.
    pub(super) fn new(first: usize, num_backups: usize, distance: usize) -> Self {
        Self { alive: (0..=num_backups).map(|copy| first + copy * distance).collect() }
    }

    /// The server to send requests to.
    pub(super) fn primary(&self) -> usize {
        self.alive[0]
    }

    /// Drops the lost primary; an error if no backup is left.
    pub(super) fn drop_primary(&mut self, why: CommError) -> Result<LostServer, CommError> {
        if self.alive.len() == 1 {
            return Err(why);
        }
        let rank = self.alive.remove(0);
        Ok(LostServer { rank, successor: self.alive[0] })
    }

    /// Drops the backup after the primary reported its loss; `None` if that is known.
    pub(super) fn drop_backup(&mut self) -> Option<LostServer> {
        let rank = (self.alive.len() > 1).then(|| self.alive.remove(1))?;
        Some(LostServer { rank, successor: self.alive[0] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_mesh::Rank;

    fn gone(peer: usize) -> CommError {
        let (reason, group) = ("its process ended".to_owned(), "servers".to_owned());
        CommError::Gone { peer: Rank(peer), reason, group }
    }

    #[test]
    fn one_server_of_two_may_fail_and_the_other_may_not() {
        let mut shard_servers = ShardServers::new(3, 1, 2);
        assert_eq!(shard_servers.primary(), 3);
        assert_eq!(shard_servers.drop_primary(gone(3)), Ok(LostServer { rank: 3, successor: 5 }));
        assert_eq!((shard_servers.primary(), shard_servers.drop_backup()), (5, None));
        assert_eq!(shard_servers.drop_primary(gone(5)), Err(gone(5)));
    }

    #[test]
    fn a_lost_backup_is_reported_once() {
        let mut shard_servers = ShardServers::new(3, 1, 2);
        assert_eq!(shard_servers.drop_backup(), Some(LostServer { rank: 5, successor: 3 }));
        assert_eq!((shard_servers.primary(), shard_servers.drop_backup()), (3, None));
        assert_eq!(ShardServers::new(3, 0, 2).drop_primary(gone(3)), Err(gone(3)));
    }
}
