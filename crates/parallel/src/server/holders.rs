//! Whom a worker asks for a part of the weights, and who takes over.

use lockstep_comm::CommError;

/// Who holds one part, the one to ask in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holders {
    left: Vec<usize>,
}

/// A server that is gone and whose part another holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Where it stood in the group.
    pub position: usize,
    /// Where the one stands that holds its part now, alone.
    pub successor: usize,
}

impl Holders {
    /// Those at `first`, and for each copy so many places further on.
    pub(super) fn new(first: usize, copies: usize, distance: usize) -> Self {
        Self { left: (0..=copies).map(|copy| first + copy * distance).collect() }
    }

    /// Whom to ask.
    pub(super) fn head(&self) -> usize {
        self.left[0]
    }

    /// What is lost when the one that was asked is gone; an error if nobody else is left.
    pub(super) fn lose_head(&mut self, why: CommError) -> Result<Loss, CommError> {
        if self.left.len() == 1 {
            return Err(why);
        }
        let position = self.left.remove(0);
        Ok(Loss { position, successor: self.left[0] })
    }

    /// The one that was asked says that it is alone: what that means, if it is news.
    pub(super) fn lose_copy(&mut self) -> Option<Loss> {
        let position = (self.left.len() > 1).then(|| self.left.remove(1))?;
        Some(Loss { position, successor: self.left[0] })
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
    fn one_of_two_may_go_and_the_other_may_not() {
        let mut holders = Holders::new(3, 1, 2);
        assert_eq!(holders.head(), 3);
        assert_eq!(holders.lose_head(gone(3)), Ok(Loss { position: 3, successor: 5 }));
        assert_eq!((holders.head(), holders.lose_copy()), (5, None));
        assert_eq!(holders.lose_head(gone(5)), Err(gone(5)));
    }

    #[test]
    fn a_copy_that_is_gone_is_told_once() {
        let mut holders = Holders::new(3, 1, 2);
        assert_eq!(holders.lose_copy(), Some(Loss { position: 5, successor: 3 }));
        assert_eq!((holders.head(), holders.lose_copy()), (3, None));
        assert_eq!(Holders::new(3, 0, 2).lose_head(gone(3)), Err(gone(3)));
    }
}
