//! The answer that each step must get.

use super::memory::Memory;
use super::step::Step;

impl Memory {
    /// Takes a step in the model. Returns the answer that the step must get.
    pub fn take(&mut self, by: usize, step: &Step) -> String {
        let answer = match step {
            Step::Begin => self.open(by),
            Step::Commit => self.commit(by),
            Step::Rollback => self.roll_back(by),
            Step::Savepoint => {
                let length = self.connections[by].log.len();
                self.connections[by].savepoints.push(length);
                Ok(String::new())
            }
            Step::RollbackTo => {
                self.roll_back_to_savepoint(by);
                Ok(String::new())
            }
            Step::ReleaseSavepoint => {
                self.connections[by].savepoints.pop();
                Ok(String::new())
            }
            Step::Register { client, resume, request_id, kind } => {
                self.register(by, *client, *resume, *request_id, *kind)
            }
            Step::Close { session } => self.close(by, *session),
            Step::Silence { session } => {
                self.sessions[*session].silent = true;
                Ok(String::new())
            }
            Step::Call { session, call } => {
                let answer = self.call(by, *session, call);
                if self.connections[by].in_transaction {
                    answer
                } else if answer.is_ok() {
                    self.commit(by).and(answer)
                } else {
                    _ = self.roll_back(by);
                    answer
                }
            }
        };
        answer.unwrap_or_else(str::to_owned)
    }
}
