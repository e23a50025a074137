package redlock

// Mutation and NoWriteBack let the tests on real servers take the write-back out.
type Mutation = mutation

const NoWriteBack = noWriteBack

// Sabotage takes parts of the algorithm out.
func Sabotage(b *Backend, m Mutation) { b.mutation = m }
