"""What a trace records: values and the tensors that stand for them, nodes, inputs and the memory that they share."""
