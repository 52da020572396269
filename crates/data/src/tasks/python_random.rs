//! Samples of Python's `random.Random`: Mersenne Twister (Matsumoto and Nishimura 1998) and the
//! drawing of `Random.sample`, by which lm-evaluation-harness chooses the examples of a prompt.

/// Words of the generator's state.
const N: usize = 624;
const M: usize = 397;

/// A generator seeded as `random.Random(seed)`.
#[derive(Clone)]
pub(super) struct PythonRandom {
    state: [u32; N],
    next: usize,
}

impl PythonRandom {
    pub(super) fn new(seed: u32) -> Self {
        let mut state = [0u32; N];
        state[0] = 19_650_218;
        for i in 1..N {
            state[i] = next_word(state[i - 1], 1_812_433_253).wrapping_add(i as u32);
        }
        let mut i = 1;
        for _ in 0..N {
            state[i] = (state[i] ^ next_word(state[i - 1], 1_664_525)).wrapping_add(seed);
            i = advance(i, &mut state);
        }
        for _ in 1..N {
            let word = state[i] ^ next_word(state[i - 1], 1_566_083_941);
            state[i] = word.wrapping_sub(i as u32);
            i = advance(i, &mut state);
        }
        state[0] = 1 << 31;
        Self { state, next: N }
    }

    fn next_u32(&mut self) -> u32 {
        if self.next == N {
            for i in 0..N {
                let bits = (self.state[i] & (1 << 31)) | (self.state[(i + 1) % N] & !(1 << 31));
                let twist = if bits & 1 == 0 { 0 } else { 0x9908_b0df };
                self.state[i] = self.state[(i + M) % N] ^ (bits >> 1) ^ twist;
            }
            self.next = 0;
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// A number below `limit`, which is not zero.
    fn below(&mut self, limit: u32) -> usize {
        let num_bits = u32::BITS - limit.leading_zeros();
        loop {
            let number = self.next_u32() >> (u32::BITS - num_bits);
            if number < limit {
                return number as usize;
            }
        }
    }

    /// Numbers of `num_drawn` of `num` items.
    ///
    /// # Panics
    /// With fewer items than are drawn.
    pub(super) fn sample(&mut self, num: u32, num_drawn: usize) -> Vec<usize> {
        assert!(num_drawn <= num as usize, "{num_drawn} of {num}");
        // Python's estimate of where a set is smaller than a list.
        let mut set_size = 21;
        if num_drawn > 5 {
            let mut table = 1;
            while table < num_drawn.saturating_mul(3) {
                table *= 4;
            }
            set_size += table;
        }
        let mut drawn = Vec::with_capacity(num_drawn);
        if num as usize <= set_size {
            let mut pool: Vec<usize> = (0..num as usize).collect();
            for left in (0..num).rev().take(num_drawn) {
                drawn.push(pool.swap_remove(self.below(left + 1)));
            }
            return drawn;
        }
        while drawn.len() < num_drawn {
            let number = self.below(num);
            if !drawn.contains(&number) {
                drawn.push(number);
            }
        }
        drawn
    }
}

fn next_word(before: u32, factor: u32) -> u32 {
    (before ^ (before >> 30)).wrapping_mul(factor)
}

/// The index after `i`; the last word becomes the first.
fn advance(i: usize, state: &mut [u32; N]) -> usize {
    if i + 1 < N {
        return i + 1;
    }
    state[0] = state[N - 1];
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_those_of_python() {
        // random.Random(1234): sample(range(10), 3), sample(range(1000), 5), sample(range(40), 8).
        let mut random = PythonRandom::new(1234);
        assert_eq!(random.sample(10, 3), [7, 1, 0]);
        assert_eq!(random.sample(1000, 5), [92, 932, 965, 961, 826]);
        assert_eq!(random.sample(40, 8), [37, 2, 5, 6, 22, 15, 1, 33]);
        let last = (0..700).map(|_| random.next_u32()).last();
        assert_eq!(last, Some(2_031_195_112));
    }
}
